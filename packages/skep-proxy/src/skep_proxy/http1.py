"""HTTP/1.1 heads and bodies, strictly: bytes in, values out, no sockets.

A proxy that reads a message differently from the server behind it can be made to smuggle one request inside another, so
whatever has two readings is refused (RFC 9112 sections 2.2, 3.2, 5, 6.3, 11.2):

- lines end in CR LF; a bare CR, a bare LF, NUL and other control characters are errors, and so are folded lines;
- no space before the colon of a field, none inside the target, one space on each side of it;
- Content-Length at most once and in digits; never beside Transfer-Encoding, which is `chunked` and nothing else;
- chunk sizes in at most 16 hex digits; chunk extensions are dropped; bodies are framed anew on their way out.
"""

from __future__ import annotations

import re
from functools import lru_cache

from skep_policy.value import Value

Header = tuple[bytes, bytes, bytes]
"""(lower-case name, name as written, value)."""

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
_DIGITS = re.compile(rb"[0-9]{1,18}")

REMEMBERED = 512
"""Bytes of a CONNECT head up to which it is remembered: a client asks for tunnel after tunnel with the same one."""

HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade"),
        *(b"proxy-authorization", b"proxy-authenticate", b"proxy-authentication-info"),
    )
)
"""Fields about one connection (RFC 9110 section 7.6.1) and credentials for a proxy: never passed on."""

KEPT_IN_SPITE_OF_CONNECTION = frozenset(
    (b"host", b"content-length", b"cookie", b"authorization", b"date", b"content-type")
)
"""`Connection: host` must not strip what the next reader depends on; such options are ignored."""


class BadMessage(ValueError):
    """What was read is not HTTP/1.1 that has exactly one reading. `status` is what a client is told."""

    def __init__(self, problem: str, *, status: int = 400) -> None:
        super().__init__(problem)
        self.problem = problem
        self.status = status


class Body(Value):
    """How a body ends: after `length` bytes, by its chunks, or with the connection when it is neither."""

    length: int | None = None
    chunked: bool = False

    @property
    def empty(self) -> bool:
        return self.length == 0


NO_BODY = Body(length=0)
CHUNKED = Body(chunked=True)
UNTIL_CLOSE = Body()
NO_OPTIONS: frozenset[bytes] = frozenset()


class Request(Value):
    """A request head. `options` are the lower-case tokens of Connection and Proxy-Connection."""

    method: bytes
    target: bytes
    minor: int
    headers: tuple[Header, ...]
    body: Body
    options: frozenset[bytes]

    def get(self, name: bytes) -> bytes | None:
        """The value of the first field of that lower-case name."""
        return next((value for lower, _, value in self.headers if lower == name), None)

    @property
    def keep_alive(self) -> bool:
        """May another request follow? HTTP/1.0 connections end with their first response."""
        return self.minor == 1 and b"close" not in self.options


class Response(Value):
    """A response head; how its body ends depends on the request, see `response_body`."""

    status: int
    minor: int
    phrase: bytes
    headers: tuple[Header, ...]
    options: frozenset[bytes]

    @property
    def keep_alive(self) -> bool:
        return b"close" not in self.options and (self.minor == 1 or b"keep-alive" in self.options)


def head_end(buffer: bytes | bytearray, start: int = 0) -> int:
    """Where the head at the beginning of a buffer ends, its empty line included; -1 when it is not complete.
    `start` is how far an earlier call has looked.
    """
    found = buffer.find(b"\r\n\r\n", max(0, start - 3))
    return found + 4 if found >= 0 else -1


def parse_request(head: bytes) -> Request:
    """A complete head, as `head_end` delimits it. Raises BadMessage."""
    remembered = len(head) <= REMEMBERED and head.startswith(b"CONNECT ")
    return _remembered(head) if remembered else _parse_request(head)


def _parse_request(head: bytes) -> Request:
    line, _, fields = head[:-2].partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        if re.fullmatch(rb"(?:.*) HTTP/[2-9](?:\.[0-9])?", line):
            raise BadMessage("only HTTP/1.0 and HTTP/1.1 are spoken here", status=505)
        raise BadMessage("the request line is not METHOD SP TARGET SP HTTP/1.1")
    method, target, minor = match[1], match[2], match[3] == b"1"
    headers = parse_fields(fields)
    names = [lower for lower, _, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and minor and method != b"CONNECT"):
        raise BadMessage("one Host field is required")
    framed = b"content-length" in names or b"transfer-encoding" in names
    body = _request_body(headers, minor) if framed else NO_BODY
    if method == b"CONNECT" and not body.empty:
        raise BadMessage("CONNECT has no body")
    spoken = b"connection" in names or b"proxy-connection" in names
    options = connection_options(headers) if spoken else NO_OPTIONS
    return Request(method, target, int(minor), headers, body, options)


_remembered = lru_cache(256)(_parse_request)


def parse_response(head: bytes) -> Response:
    """A complete head. Raises BadMessage."""
    line, _, fields = head[:-2].partition(b"\r\n")
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise BadMessage("the status line is not HTTP/1.1 SP STATUS SP PHRASE", status=502)
    headers = parse_fields(fields)
    return Response(int(match[2]), int(match[1]), match[3] or b"", headers, connection_options(headers))


def parse_fields(block: bytes) -> tuple[Header, ...]:
    """Field lines, each ended by CR LF. Raises BadMessage."""
    if not block:
        return ()
    headers: list[Header] = []
    for line in block[:-2].split(b"\r\n"):
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadMessage(f"not a header field: {line[:80]!r}")
        name, value = match.groups()
        headers.append((name.lower(), name, value.strip(b" \t")))
    return tuple(headers)


def connection_options(headers: tuple[Header, ...]) -> frozenset[bytes]:
    """The lower-case tokens of Connection and Proxy-Connection."""
    return frozenset(
        token.strip().lower()
        for lower, _, value in headers
        if lower in (b"connection", b"proxy-connection")
        for token in value.split(b",")
    )


def end_to_end(
    headers: tuple[Header, ...], options: frozenset[bytes], *, drop: frozenset[bytes] = frozenset()
) -> bytes:
    """The field lines that are passed on: no hop-by-hop ones, none that Connection lists, none of `drop`."""
    gone = HOP_BY_HOP | drop | (options - KEPT_IN_SPITE_OF_CONNECTION)
    return b"".join([b"%b: %b\r\n" % (name, value) for lower, name, value in headers if lower not in gone])


def _request_body(headers: tuple[Header, ...], minor: bool) -> Body:
    lengths = [value for lower, _, value in headers if lower == b"content-length"]
    codings = [value for lower, _, value in headers if lower == b"transfer-encoding"]
    if codings:
        if lengths:
            raise BadMessage("both Content-Length and Transfer-Encoding")
        if len(codings) > 1 or codings[0].lower() != b"chunked" or not minor:
            raise BadMessage("the only Transfer-Encoding spoken here is HTTP/1.1 chunked")
        return CHUNKED
    return _length(lengths) or NO_BODY


def response_body(response: Response, method: bytes) -> Body:
    """How the body of a final response ends (RFC 9112 section 6.3). Raises BadMessage for framing with two readings."""
    lengths = [value for lower, _, value in response.headers if lower == b"content-length"]
    codings = [value for lower, _, value in response.headers if lower == b"transfer-encoding"]
    if codings and (lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or not response.minor):
        raise BadMessage("a response framed in a way that has more than one reading", status=502)
    length = _length(lengths, status=502)
    if method == b"HEAD" or response.status in (204, 304) or response.status < 200:
        return NO_BODY
    return CHUNKED if codings else length or UNTIL_CLOSE


def _length(values: list[bytes], *, status: int = 400) -> Body | None:
    if not values:
        return None
    if len(values) > 1 or _DIGITS.fullmatch(values[0]) is None:
        raise BadMessage("Content-Length is one number, once", status=status)
    return Body(length=int(values[0]))
