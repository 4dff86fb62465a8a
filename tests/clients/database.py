"""PostgreSQL's own server, where it is installed: a cluster in a folder of its own, on loopback, gone afterwards."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))[-1:]
NOBODY = 65534


def found() -> Path | None:
    """The folder with its programs."""
    path = shutil.which("initdb")
    return Path(path).resolve().parent if path else PROGRAMS[0] if PROGRAMS else None


@contextmanager
def postgres(port: int, marker: str) -> Generator[None]:
    """It listens on `port`; user `u` may read the one `marker` of the table `skepling` in the database `postgres`."""
    programs = found()
    assert programs is not None
    # It refuses to be root, and whom it runs as then must get at its folder.
    root = os.geteuid() == 0
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if root else []
    env = {"PATH": os.defpath, "LC_ALL": "C"}
    with tempfile.TemporaryDirectory(prefix="skep-database-") as name:
        base = Path(name)
        base.chmod(0o755)
        data = base / "data"
        data.mkdir(mode=0o700)
        if root:
            os.chown(data, NOBODY, NOBODY)

        def run(*words: str, said: str = "") -> None:
            argv = [*prefix, f"{programs}/{words[0]}", *words[1:]]
            done = subprocess.run(argv, input=said, cwd=base, env=env, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr

        run("initdb", "-D", str(data), "-U", "u", "-A", "trust", "--no-sync", "-E", "UTF8")
        table = f"create table skepling as select '{marker}'::text as marker;\n"
        run("postgres", "--single", "-D", str(data), "postgres", said=table)
        argv = [*prefix, f"{programs}/postgres", "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
        log = base / "log"
        with log.open("wb") as out:
            server = subprocess.Popen(argv, cwd=base, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            wait_for(port, server, log)
            yield
        finally:
            server.terminate()
            server.wait(60)


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.05)
