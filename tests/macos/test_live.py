"""skep on a real Mac, as a user types it. Nothing here has been run by who wrote it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.macos,
    pytest.mark.skipif(sys.platform != "darwin", reason="needs a Mac; .github/workflows/macos.yml runs it on several"),
]

SKEP = [sys.executable, "-m", "skep_cli"]


class Home:
    """A home with a folder `work` to work in and a file `mine` beside it."""

    def __init__(self, base: Path) -> None:
        self.home = base
        self.work = base / "work"
        self.work.mkdir()
        self.mine = base / "mine"
        self.mine.write_text("untouched")

    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "en_US.UTF-8"}

    def skep(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SKEP, *words],
            cwd=self.work,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def exec(self, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
        return self.skep("exec", *flags, "--", "/bin/sh", "-c", script)


@pytest.fixture
def home() -> Iterator[Home]:
    base = Path(os.path.realpath(tempfile.mkdtemp(prefix=".skep-live-", dir=Path.home())))
    try:
        yield Home(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_doctor_finds_the_sandbox_usable(home: Home) -> None:
    done = home.skep("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["backend"] == "seatbelt" and found["usable"], found


def test_exec_writes_inside_and_nowhere_else(home: Home) -> None:
    done = home.exec("echo x > inside; echo y > ../mine")
    assert done.returncode != 0 and "Operation not permitted" in done.stderr
    assert (home.work / "inside").read_text() == "x\n" and home.mine.read_text() == "untouched"


def test_temporary_files_are_the_runs_own_and_gone_after(home: Home) -> None:
    done = home.exec('echo "$TMPDIR"; touch "$TMPDIR/x" && chflags uchg "$TMPDIR/x"')
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert str(folder).startswith("/var/folders/") and not folder.parent.exists()


def test_sockets_of_python_workers_fit_into_the_temporary_folder(home: Home) -> None:
    script = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close(); print('fits')"
    done = home.skep("exec", "--", sys.executable, "-c", script)
    assert done.stdout == "fits\n", done.stderr


def test_a_denied_domain_is_told_with_its_flag_and_loopback_is_not_open(home: Home) -> None:
    assert "--allow denied.example" in home.exec("curl -s https://denied.example").stderr
    assert home.exec("curl -s --noproxy '*' http://127.0.0.1:22", "--allow", "example.com").returncode == 7


def test_a_denial_of_the_kernel_is_told(home: Home) -> None:
    report = home.work / "report.json"
    home.exec("echo y > ../mine; sleep 0.3; exit 1", "--report", str(report))
    said = json.loads(report.read_text())
    if said["layers"]["denials"] is not True:
        pytest.skip(str(said["layers"]["denials"]))
    assert str(home.mine) in [found["path"] for found in said["findings"] if found["kind"] == "denied"]


def test_skep_inside_skep_is_refused_with_the_reason(home: Home) -> None:
    done = home.exec(f"{' '.join(SKEP)} exec -- true")
    assert done.returncode == 125 and "already inside a sandbox" in done.stderr


def test_a_terminal_is_the_commands_own_and_given_back(home: Home) -> None:
    pid, near = pty.fork()
    if pid == 0:
        os.chdir(home.work)
        os.execve(
            SKEP[0], [*SKEP, "exec", "--", "/bin/sh", "-c", "tty; test -t 0 -a -t 1 && echo both"], home.environ()
        )
    seen = b""
    while True:
        try:
            block = os.read(near, 4096)
        except OSError:
            break
        if not block:
            break
        seen += block
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"/dev/ttys" in seen and b"both" in seen


def test_when_skep_is_killed_nothing_is_left(home: Home) -> None:
    script = 'echo "$TMPDIR" > place; touch ready; sleep 6789'
    skep = subprocess.Popen([*SKEP, "exec", "--", "/bin/sh", "-c", script], cwd=home.work, env=home.environ())
    try:
        assert eventually((home.work / "ready").exists)
    finally:
        skep.send_signal(signal.SIGKILL)
        skep.wait()
    place = Path((home.work / "place").read_text().strip())
    assert eventually(lambda: not place.exists())
    assert eventually(
        lambda: subprocess.run(["/usr/bin/pgrep", "-f", "sleep 6789"], capture_output=True).returncode == 1
    )


def test_a_run_gives_a_verified_patch_of_a_clone(home: Home) -> None:
    (home.work / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "base")):
        subprocess.run(["git", *words], cwd=home.work, env=home.environ(), check=True)
    worker = home.home / "worker.sh"
    worker.write_text(
        f"sed -i '' 's/a - b/a + b/' calc.py; git status --short; echo y > {home.mine}; chflags uchg calc.py; exit 0\n"
    )
    done = home.skep("run", ".", "mend it", "--worker", f"sh {worker}", "--verify", "grep -q 'a + b' calc.py", "--json")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert document["files_changed"] == ["calc.py"] and document["verification"]["outcome"] == "passed", done.stderr
    assert "sharing the disk space" in done.stderr, "APFS clones"
    assert home.mine.read_text() == "untouched"


def eventually(condition: Any) -> bool:
    import time

    for _ in range(500):
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())
