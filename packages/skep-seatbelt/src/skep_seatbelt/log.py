"""The unified log while a run goes on: what it says was denied, for people to read. Nothing is decided by it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from .denials import Denial, collect, log_command

GRACE = 0.5
"""Seconds a worker that failed is waited for the log's last words: they come late."""

QUIET = 0.15
"""Seconds without a line after which nothing more is waited for."""

MAX_LINES = 10_000


class Log:
    """One run's denials. `begin` before the spawn, which is given what it returns; `settle` when the worker has ended;
    `found` when the spawner's side is done.
    """

    PROGRAM: ClassVar = "/usr/bin/log"

    def __init__(self, tag: str, *, program: str = PROGRAM) -> None:
        self._tag = tag
        self._program = program
        self._lines: list[str] = []
        self._last = 0.0
        self._thread: threading.Thread | None = None

    def begin(self) -> tuple[Sequence[str], int] | None:
        """A command and the descriptor it is to write to; None where there is no such program."""
        if not os.access(self._program, os.X_OK):
            return None
        read, write = os.pipe()
        self._thread = threading.Thread(target=self._follow, args=(read,), name="skep-log", daemon=True)
        self._thread.start()
        return (self._program, *log_command(self._tag)[1:]), write

    @property
    def state(self) -> bool | str:
        """Whether the log was read, or why not."""
        if self._thread is None:
            return f"there is no {self._program}"
        return True if self._last else "the log said nothing; macOS lets administrators read it, and drops repeats"

    def settle(self, exit_code: int) -> None:
        """What the log has to say of a worker that failed has come, as far as it comes in time."""
        if self._thread is None or exit_code == 0:
            return
        end = time.monotonic() + GRACE
        quiet = time.monotonic()
        while time.monotonic() < min(end, max(quiet, self._last) + QUIET):
            time.sleep(QUIET / 10)

    def found(self) -> tuple[Denial, ...]:
        """The denials, each once. The command that wrote them has ended or soon will."""
        if self._thread is not None:
            self._thread.join(QUIET)
        return tuple(collect(list(self._lines), tag=self._tag))

    def _follow(self, fd: int) -> None:
        with open(fd, errors="replace") as stream:
            for line in stream:
                self._last = time.monotonic()
                if self._tag in line and len(self._lines) < MAX_LINES:
                    self._lines.append(line)
