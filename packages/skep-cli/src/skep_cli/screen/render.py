"""Text for people. Nothing an untrusted program wrote reaches a terminal as a command to it.

File names, patches, logs and results come from the worker: control characters, bidirectional overrides and bytes that
are no UTF-8 are shown as escapes, so that what is read is what is there. Colours are written to terminals only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

from .fold import columns, folded, rows

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # invisible, bidirectional
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"  # drawn around or over what follows
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # of hieroglyphs, shorthand and music
    "\ud800-\udfff\U000e0000-\U000e0fff]"  # bytes that were no UTF-8, tags
)
QUOTE = "  | "
"""Before every row of what the worker wrote."""
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
_SGR = re.compile(r"\x1b\[[0-9;:]{0,32}m")
_PARTIAL = re.compile(r"\x1b(\[[0-9;:]{0,32})?$")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"


def visible(text: str) -> str:
    """The text with everything a terminal would act on, or a reader would not see, escaped. Tabs and newlines stay."""
    return _UNSAFE.sub(_escape, text)


def one_line(text: str, limit: int | None = 200) -> str:
    """As `visible`, on one line of at most `limit` characters; None where a cut could leave out what matters."""
    text = visible(text.replace("\n", "\u23ce").replace("\t", " "))
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


class Live:
    """A worker's output on the way to a terminal: colours pass, every other command to the terminal is made visible.

    Carriage returns pass too, for progress bars. Feed bytes in any pieces; `end` gives what was held back.
    """

    def __init__(self) -> None:
        self._bytes = b""
        self._held = ""

    def feed(self, data: bytes) -> str:
        data = self._bytes + data
        cut = _utf8_cut(data)
        self._bytes = data[cut:]
        text = self._held + data[:cut].decode(errors="surrogateescape")
        partial = _PARTIAL.search(text)
        keep = partial.start() if partial else len(text)
        self._held = text[keep:]
        return self._pass(text[:keep])

    def end(self) -> str:
        text = self._held + self._bytes.decode(errors="surrogateescape")
        self._held, self._bytes = "", b""
        return self._pass(text)

    @staticmethod
    def _pass(text: str) -> str:
        out: list[str] = []
        at = 0
        for match in _SGR.finditer(text):
            out += (_keep_returns(text[at : match.start()]), match[0])
            at = match.end()
        out.append(_keep_returns(text[at:]))
        return "".join(out)


def _keep_returns(text: str) -> str:
    return "\r".join(visible(part) for part in text.split("\r"))


def _utf8_cut(data: bytes) -> int:
    """Where the last, unfinished UTF-8 sequence begins; the length when there is none."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) - back if needed > back else len(data)
    return len(data)


class Page:
    """Lines for one stream; `style` colours only when the stream is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stdout
        self.colours = self.stream.isatty()
        self.columns = columns(self.stream)

    def style(self, text: str, *names: str) -> str:
        if not self.colours or not names:
            return text
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"

    def line(self, text: str = "", *names: str) -> None:
        """One line, made visible first, then in rows as wide as the terminal, then styled."""
        self.raw(self.style(folded(visible(text), self.columns), *names) + "\n")

    def quoted(self, text: str) -> None:
        """A line of the worker's, every row of it with its mark."""
        for row in rows(visible(text), self.columns, QUOTE) if self.columns else (QUOTE + visible(text),):
            self.raw(row + "\n")

    def heading(self, text: str) -> None:
        self.raw("\n" + self.style(visible(text), "bold") + "\n")

    def raw(self, text: str) -> None:
        encoding = self.stream.encoding or "utf-8"
        self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self.stream.flush()


def table(rows: Iterable[tuple[str, ...]], header: tuple[str, ...]) -> list[str]:
    """Columns of plain text, aligned; the last is not padded."""
    cells = [header, *(tuple(one_line(cell, 60) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths[:-1], 0], strict=True)).rstrip()
        for row in cells
    ]


def minute(stamp: str) -> str:
    """A time of a record to the minute, by this machine's clock on the wall; the text itself where it is no time."""
    try:
        return datetime.fromisoformat(stamp).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError):
        return one_line(stamp, 16)


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
