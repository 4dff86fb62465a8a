"""Lines of skep's own on a terminal that is narrower than they are: rows end with whole words.

What stands between backticks is a command or a name to be copied: it is one word. No row is put into what goes anywhere
else than to a terminal: there a line is a line.
"""

from __future__ import annotations

import os
import re
import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

_WORD = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
HANGING = 2
"""Columns that the rows after the first are further in."""


def cells(char: str) -> int:
    """Columns a character takes."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def rows(line: str, columns: int, mark: str) -> Iterator[str]:
    """A line in pieces of at most that many columns, each with its mark. One ends with a whole word where it has one,
    and the space it ends at is not shown.
    """
    room = max(1, columns - len(mark))
    start, width, space = 0, 0, -1
    for at, char in enumerate(line):
        wide = cells(char)
        if char == " " and line[start:at].strip(" "):
            space = at
        if width + wide > room and at > start:
            end = space if space > start else at
            yield mark + line[start:end]
            start = end + (end == space)
            width = sum(map(cells, line[start:at]))
        if at >= start:
            width += wide
    yield mark + line[start:]


def columns(stream: TextIO) -> int | None:
    """How wide the terminal is that a stream leads to; None when it leads to none."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
    except (OSError, ValueError):
        return None


def folded(line: str, columns: int | None) -> str:
    """The line, in rows of at most that many columns; a word that is longer has a row for itself."""
    if columns is None or sum(map(cells, line)) <= columns:
        return line
    indent = len(line) - len(line.lstrip(" "))
    return "\n".join(_rows(line, columns, " " * min(indent + HANGING, columns // 3)))


def _rows(line: str, columns: int, hang: str) -> Iterator[str]:
    row, end = "", 0
    for word in _WORD.finditer(line):
        more = line[end : word.end()]
        if row.strip() and sum(map(cells, row + more)) > columns:
            yield row
            row = hang + word[0]
        else:
            row += more
        end = word.end()
    yield row
