"""A pseudo terminal with a program on it, as a person would have it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

SKEP = str(Path(sys.executable).with_name("skep"))
PATIENCE = 60.0
"""Seconds until what did not come will not come."""


class Terminal:
    """A program on a pseudo terminal of its own, typed at and read from outside."""

    def __init__(
        self,
        argv: list[str],
        folder: Path,
        size: tuple[int, int] = (24, 80),
        term: str = "dumb",
        more: Mapping[str, str] | None = None,
    ) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "TERM": term,
            "PS1": "sh% ",
            "SKEP": SKEP,
            **(more or {}),
        }
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder / "work")
            os.execve(argv[0], argv, environ)
        self.resize(*size)
        self.seen = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        if text[:1] in "\x03\x1a\x1c":
            time.sleep(0.2)  # a shell that is about to fork may lose an interrupt, without skep too
        os.write(self.fd, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Read until the pattern has been seen; what is before its end is forgotten."""
        end = time.monotonic() + PATIENCE
        while True:
            if found := re.search(pattern, self.seen):
                self.seen = self.seen[found.end() :]
                return found
            left = end - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no {pattern!r} in {self.seen!r}"
            try:
                block = os.read(self.fd, 65536)
            except OSError:
                block = b""
            assert block, f"it ended without {pattern!r}: {self.seen!r}"
            self.seen += block.decode(errors="replace").replace("\r", "")

    def wait_for_foreground(self, program: str) -> None:
        """The process group that has the terminal is led by this program; it has it before it has been executed."""
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{os.tcgetpgrp(self.fd)}/comm").read_text() != f"{program}\n":
            assert time.monotonic() < end
            time.sleep(0.05)

    def modes(self) -> int:
        return int(termios.tcgetattr(self.fd)[3])

    def end(self) -> int:
        """Its exit code; what it still says is read, since a full terminal would hold it."""
        while True:
            try:
                if not os.read(self.fd, 65536):
                    break
            except OSError:
                break
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self.fd)
