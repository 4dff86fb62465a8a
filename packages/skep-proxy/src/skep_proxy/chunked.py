"""The chunked transfer coding, read strictly and written anew. Bytes in, bytes out.

Framing is never passed on as it came: sizes are parsed and printed again, extensions are dropped, trailers are
checked. So what the next reader sees has one reading, whatever this one was sent.
"""

from __future__ import annotations

import re

from .flow import Truncated
from .http1 import HOP_BY_HOP, BadMessage, parse_fields

MAX_LINE = 4096
"""Bytes of a chunk-size line with its extensions (RFC 9112 section 7.1.1 asks for a limit)."""

MAX_TRAILERS = 65536
"""Bytes of the trailer section."""

FORBIDDEN_TRAILERS = HOP_BY_HOP | {
    *(b"content-length", b"content-encoding", b"content-type", b"content-range", b"trailer", b"host"),
    *(b"authorization", b"set-cookie", b"cookie", b"cache-control", b"expect", b"range", b"max-forwards"),
}
"""Fields that would change how the message was to be read, were they merged into its head (RFC 9110 section 6.5.1)."""

_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")


class ChunkedFilter:
    """A flow's filter. With `reframe` it passes on chunks, else only what is in them."""

    __slots__ = ("_buffer", "_left", "_reframe", "_step", "_trailers", "_trailers_size", "rest", "state")

    def __init__(self, *, reframe: bool) -> None:
        self.state = "more"
        self.rest = b""
        self._reframe = reframe
        self._buffer = b""
        self._left = 0
        self._step = "size"
        self._trailers: list[bytes] = []
        self._trailers_size = 0

    def feed(self, data: bytes) -> bytes:
        """What goes on. Raises BadMessage."""
        buffer = self._buffer + data if self._buffer else data
        out: list[bytes] = []
        at = 0
        while self.state == "more" and at < len(buffer):
            if self._step == "data":
                piece = buffer[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                out.append(b"%x\r\n%b\r\n" % (len(piece), piece) if self._reframe else piece)
                if self._left == 0:
                    self._step = "data-end"
                continue
            end = buffer.find(b"\n", at)
            if end < 0:
                self._check_length(len(buffer) - at)
                break
            self._check_length(end - at)
            line = buffer[at : end + 1]
            at = end + 1
            if not line.endswith(b"\r\n"):
                raise BadMessage("a chunked body with a bare line feed")
            self._line(line[:-2], out)
        if self.state == "done":
            self.rest, self._buffer = buffer[at:], b""
        else:
            self._buffer = buffer[at:]
        return b"".join(out)

    def end(self) -> bytes:
        raise Truncated("the sender went away before the last chunk")

    def _check_length(self, length: int) -> None:
        limit = MAX_TRAILERS if self._step == "trailers" else MAX_LINE
        if length + self._trailers_size > limit:
            raise BadMessage("a chunk line or trailer section that is too long")

    def _line(self, line: bytes, out: list[bytes]) -> None:
        if self._step == "data-end":
            if line:
                raise BadMessage("a chunk that is longer than it says")
            self._step = "size"
        elif self._step == "size":
            match = _SIZE.fullmatch(line)
            if match is None:
                raise BadMessage("not a chunk size")
            self._left = int(match[1], 16)
            self._step = "data" if self._left else "trailers"
        elif line:
            self._trailers.append(line + b"\r\n")
            self._trailers_size += len(line) + 2
        else:
            self.state = "done"
            if self._reframe:
                fields = parse_fields(b"".join(self._trailers))
                kept = [
                    b"%b: %b\r\n" % (name, value) for lower, name, value in fields if lower not in FORBIDDEN_TRAILERS
                ]
                out.append(b"0\r\n" + b"".join(kept) + b"\r\n")
