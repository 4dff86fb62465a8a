"""A worker that tries to get out, seen from inside and from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

SKEP = Path(sys.executable).with_name("skep")
PYTHON = "python3"

# Runs `attempt()` and prints what became of it: "ok", or the name of the errno.
TELL = """
import errno, os, sys
try:
    attempt()
    print("ok")
except OSError as error:
    print(errno.errorcode.get(error.errno, error))
"""


class Worker:
    """Runs commands as `skep exec` does in `workspace`, with a home of its own. `outside` is a folder beside both.

    `unwritable` and `unreachable` are what attempts on `outside` meet. Below /tmp, where the worker has a folder of its
    own, that is nothing at all (`unseen`); elsewhere it is the host's folder, read-only, its sockets covered.
    """

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.workspace = self.home / "work"
        self.outside = base / "outside"
        for folder in (self.home, self.workspace, self.outside):
            folder.mkdir()
        self.unseen = base.is_relative_to("/tmp") or base.is_relative_to("/var/tmp")
        self.unwritable = "ENOENT" if self.unseen else "EROFS"
        self.unreachable = "ENOENT" if self.unseen else "ECONNREFUSED"

    def environ(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {
            name: os.environ[name]
            for name in ("LANG", "LC_ALL", "TERM", "SKEP_SANDBOX_MUST_WORK")
            if name in os.environ
        }
        path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        return {"PATH": path, "HOME": str(self.home), **kept, **(extra or {})}

    def argv(self, *command: str, flags: tuple[str, ...] = ()) -> list[str]:
        return [str(SKEP), "exec", *flags, "--", *command]

    def run(
        self,
        *command: str,
        flags: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*command, flags=flags),
            cwd=self.workspace,
            env=self.environ(environ),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def sh(self, script: str, *flags: str) -> str:
        """What the script printed. It must have run; what it tried may have failed."""
        done = self.run("sh", "-c", script, flags=flags)
        assert done.returncode not in (124, 125, 126, 127), done.stderr
        return done.stdout.strip()

    def attempt(self, body: str, *flags: str, stdin: int = subprocess.DEVNULL) -> str:
        """`body`, Python statements, run inside: "ok", or the errno they met."""
        return self._told(self.run(PYTHON, "-c", attempt_code(body), flags=flags, stdin=stdin))

    def unconfined(self, body: str, *, stdin: int = subprocess.DEVNULL) -> str:
        """The same without a boundary: the control that shows the attempt itself works."""
        command = [PYTHON, "-c", attempt_code(body)]
        return self._told(
            subprocess.run(
                command,
                cwd=self.workspace,
                env=self.environ(),
                stdin=stdin,
                capture_output=True,
                text=True,
                timeout=60,
            )
        )

    @staticmethod
    def _told(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def attempt_code(body: str) -> str:
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return f"def attempt():\n    import os, socket\n{lines}\n{TELL}"


def eventually(condition: Callable[[], bool], *, seconds: float = 60) -> bool:
    """True as soon as the condition holds. The bound is for what never happens, not a measure of speed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def processes_with(tag: str) -> list[int]:
    """Host processes that have `tag` in their command line."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if tag.encode() in words:
                found.append(int(entry.name))
    return found
