"""The picture of a run on a terminal, as text: what the worker says, row by row, and the row at the bottom that is
skep's own. Pure.

Nothing of the worker's can look like skep's: its control characters are made visible, its colours are dropped, and
every row of it, cut to the width of the terminal, begins with a mark at the left edge.
"""

from __future__ import annotations

import re

import msgspec

from .fold import cells
from .render import visible

MARK = "\u2502 "
MAX_LINE = 1 << 16
"""Bytes of a line that has no end: what is more begins a new one."""
TAB = 8
_SGR = re.compile(r"\x1b\[[0-9;:]{0,32}m")


class Lines:
    """The lines of an output that comes in pieces: `unfinished` is the one that goes on, `last` the newest there is."""

    def __init__(self) -> None:
        self._held = b""
        self._newest = b""

    def feed(self, block: bytes) -> list[str]:
        """The lines that are finished now. Of one that was written over (`\\r`) only what is seen at its end."""
        *whole, self._held = (self._held + block).split(b"\n")
        while len(self._held) > MAX_LINE:
            whole.append(self._held[:MAX_LINE])
            self._held = self._held[MAX_LINE:]
        if whole:
            self._newest = whole[-1]
        return [shown(line) for line in whole]

    def end(self) -> list[str]:
        """What was held back, as a line of its own."""
        return self.feed(b"\n") if self._held else []

    @property
    def unfinished(self) -> str:
        return shown(self._held)

    @property
    def last(self) -> str:
        return self.unfinished or shown(self._newest)


def shown(line: bytes) -> str:
    """A line as a terminal would leave it, in characters that are nothing but themselves."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="surrogateescape")
    return visible(_SGR.sub("", text).expandtabs(TAB))


def fit(text: str, columns: int) -> str:
    """At most that many columns of it."""
    width = 0
    for at, char in enumerate(text):
        width += cells(char)
        if width > columns:
            width -= cells(char)
            while at and width > columns - 1:
                at -= 1
                width -= cells(text[at])
            return text[:at] + "…" if columns > 0 else ""
    return text


class Moment(msgspec.Struct, frozen=True):
    """A run at one moment. `seconds` are since its phase began; `last` is the newest line of an output that is not
    seen otherwise.
    """

    phase: str
    seconds: float
    allowed: int = 0
    denied: int = 0
    last: str = ""


def row(moment: Moment, columns: int) -> str:
    """The row at the bottom; it never fills the last column, where some terminals begin a new row."""
    parts = [f"skep: {moment.phase} {clock(moment.seconds)}"]
    if moment.allowed or moment.denied:
        parts.append(f"requests: {moment.allowed:,} allowed, {moment.denied:,} denied")
    if moment.last:
        parts.append(MARK + moment.last)
    return fit("  ".join(parts), columns - 1)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
