"""What a person sees of a run while it goes on, on stderr: a line for each step; on a terminal also a live row at the
bottom (`view`).

All of it is written by plain system calls, under a lock that its holder may take again: a signal handler may say
something at any moment, in the middle of another line too. Who has closed the terminal misses what is said, and the run
goes on.
"""

from __future__ import annotations

import os
import threading
import time

from .fold import rows
from .render import Live, one_line
from .view import MARK, Lines, Moment, row

ERASE = "\r\x1b[2K"
UNWRAPPED, WRAPPED = "\x1b[?7l", "\x1b[?7h"
"""DECAWM: what a terminal takes for wider than we do is cut, and goes on in no row of its own without a mark."""
HEAD = "skep: "
TICK = 0.5
"""Seconds between two looks at the clock."""
COLUMNS = 80
"""When a terminal does not know its width."""
MIN_COLUMNS = 20


class Status:
    """Progress of a run. `output`, when there is one, is where the worker's output goes. When quiet, only warnings are
    told.
    """

    def __init__(self, *, quiet: bool = False, fd: int = 2, output: int | None = None) -> None:
        self.warned: set[str] = set()
        self._fd = fd
        self._quiet = quiet
        self._terminal = os.isatty(fd)
        self._live = self._terminal and not quiet and os.environ.get("TERM", "dumb") != "dumb"
        self._output = None if quiet else output
        self._shared = self._live and output is not None and same_terminal(fd, output)
        """Whether the worker's output comes to the very terminal that has the live row."""
        self._filter = Live() if output is not None and os.isatty(output) else None
        self._lines = Lines()
        self._lock = threading.RLock()
        self._phase: str | None = None
        self._since = 0.0
        self._allowed = self._denied = 0
        self._drawn = ""
        self._ticker: threading.Thread | None = None
        self._rest = threading.Event()

    def say(self, text: str) -> None:
        if not self._quiet:
            self._line(text, dim=True)

    def warn(self, text: str) -> None:
        """Told in quiet runs as well, and kept in `warned`."""
        self.warned.add(text)
        self._line(text, dim=False)

    def _line(self, text: str, *, dim: bool) -> None:
        head, text = HEAD, one_line(text, None)
        if self._live:  # names of files are in it: no row of it may begin as one of ours does
            text = "\n".join(rows(text, self._columns(), " " * len(HEAD)))[len(HEAD) :]
        if self._terminal:
            text, head = (text, f"\x1b[2m{head}\x1b[0m") if dim else (f"\x1b[31m{head}{text}\x1b[0m", "")
        self._put(f"{head}{text}\n")

    def phase(self, name: str) -> None:
        """The live row tells of this from now on, by a thread of its own."""
        if not self._live:
            return
        with self._lock:
            self._phase, self._since = name, time.monotonic()
            self._put("")
        if self._ticker is None:
            self._rest.clear()
            self._ticker = threading.Thread(target=self._tick, name="skep-status", daemon=True)
            self._ticker.start()

    def rest(self) -> None:
        """There is no thread of ours; the live row stays as it is."""
        if self._ticker is not None:
            self._rest.set()
            self._ticker.join()
            self._ticker = None

    def close(self) -> None:
        """What the worker wrote last is shown, and the live row is gone."""
        self.rest()
        with self._lock:
            self._phase = None
            self._put(self._marked(self._lines.end()) if self._shared else "")

    def decided(self, *, allow: bool) -> None:
        """One more request was decided."""
        with self._lock:
            self._allowed, self._denied = self._allowed + allow, self._denied + (not allow)

    def show(self, block: bytes) -> None:
        """A piece of the worker's output."""
        if self._output is None:
            return
        with self._lock:
            lines = self._lines.feed(block)
            if self._shared:
                self._put(self._marked(lines))
                return
            text = self._filter.feed(block).encode(errors="replace") if self._filter is not None else block
            _write(self._output, text)

    def _tick(self) -> None:
        while not self._rest.wait(TICK):
            self._put("")

    def _marked(self, lines: list[str]) -> str:
        columns = self._columns()
        return "".join(f"{piece}\n" for line in lines for piece in rows(line, columns, MARK))

    def _put(self, text: str) -> None:
        """The text stands above the live row, which is drawn anew."""
        with self._lock:
            fresh = ""
            if self._live and self._phase is not None:
                last = self._lines.last if not self._shared else self._lines.unfinished
                moment = Moment(self._phase, time.monotonic() - self._since, self._allowed, self._denied, last)
                fresh = row(moment, self._columns())
            if not text and fresh == self._drawn:
                return
            erase = ERASE if self._drawn else ""
            self._drawn = fresh
            if self._live and (text or fresh):
                text, fresh = UNWRAPPED + text, fresh + WRAPPED
            _write(self._fd, f"{erase}{text}{fresh}".encode(errors="backslashreplace"))

    def _columns(self) -> int:
        try:
            return max(MIN_COLUMNS, os.get_terminal_size(self._fd).columns or COLUMNS)
        except OSError:
            return COLUMNS


def same_terminal(one: int, other: int) -> bool:
    try:
        return os.isatty(other) and os.fstat(one).st_rdev == os.fstat(other).st_rdev
    except OSError:
        return False


def _write(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        pass  # nobody reads any more; the log has it
