"""The name in a TLS ClientHello, read across any fragmentation. Bytes in, a verdict out.

What a tunnel's first client bytes may be, with `sni = "match"`:

1. No TLS record (the first byte is none of 0x14 to 0x17, or the second is 0x10 or more): passes, whatever it is.
2. A ClientHello whose server name is the host the tunnel was opened for, or another host that the rules allow at that
   port: passes.
3. A ClientHello without a server name: passes. It cannot ask for another site than the one its address serves by
   default, and clients that dial addresses send none.
4. A ClientHello that names another host: cut, `sni-mismatch`.
5. Anything else that begins like TLS but is no well-formed ClientHello within the limit: cut, `malformed`.

With Encrypted ClientHello the outer name is judged. A worker that holds a valid ECH configuration of an allowed host's
provider can hide another name behind it, as it can in an HTTP Host field inside the encryption; who must exclude that
allows no host on shared front ends.
"""

from __future__ import annotations

from skep_policy import MalformedHost, Verdict, canonical_host
from skep_policy.verdict import MALFORMED, SNI_MISMATCH

from .flow import Cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 65536
"""Bytes of a ClientHello with its record headers. The largest in use, with post-quantum keys, have a few thousand."""

_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0


class MalformedHello(Exception):
    """Begins like TLS and is no ClientHello."""


class _Reader:
    """Length-prefixed fields of a handshake message; reading past the end is malformed."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._end = len(data)

    def __bool__(self) -> bool:
        return self._at < self._end

    def take(self, count: int) -> bytes:
        if self._at + count > self._end:
            raise MalformedHello("a field is longer than what holds it")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self._data[self._at :]

    def number(self, octets: int) -> int:
        return int.from_bytes(self.take(octets), "big")

    def vector(self, octets: int) -> _Reader:
        return _Reader(self.take(self.number(octets)))


class HelloReader:
    """Takes the bytes of a TLS stream as they come, each looked at once, until they hold a whole ClientHello."""

    __slots__ = ("_message", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """The body of the ClientHello once it is complete. Raises MalformedHello as soon as it cannot become one."""
        pending = self._pending
        pending += data
        while pending:
            if pending[0] != _HANDSHAKE or (len(pending) > 1 and pending[1] != 3):
                raise MalformedHello("a record that is no TLS handshake")
            if len(pending) < 5:
                return None
            size = pending[3] << 8 | pending[4]
            if not 0 < size <= 16384:
                raise MalformedHello("a record of impossible size")
            if len(pending) < 5 + size:
                return None
            self._message += pending[5 : 5 + size]
            del pending[: 5 + size]
            hello = self._complete()
            if hello is not None:
                return hello
        return None

    def _complete(self) -> bytes | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise MalformedHello("the first handshake message is no ClientHello")
        if len(message) < 4:
            return None
        length = int.from_bytes(message[1:4], "big")
        if length > LIMIT:
            raise MalformedHello("a ClientHello of impossible size")
        return bytes(message[4 : 4 + length]) if len(message) >= 4 + length else None


def server_name(hello: bytes) -> str | None:
    """The host name in the server_name extension of a ClientHello's body (RFC 6066 section 3), None when there is none.
    Raises MalformedHello.
    """
    reader = _Reader(hello)
    reader.take(2 + 32)  # legacy_version, random
    reader.vector(1)  # legacy_session_id
    reader.vector(2)  # cipher_suites
    reader.vector(1)  # legacy_compression_methods
    if not reader:
        return None
    extensions = reader.vector(2)
    if reader:
        raise MalformedHello("bytes after the extensions")
    found: str | None = None
    seen: set[int] = set()
    while extensions:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind in seen:
            raise MalformedHello("an extension given twice")
        seen.add(kind)
        if kind == _SERVER_NAME:
            found = _host_name(content)
    return found


def _host_name(content: _Reader) -> str:
    names = content.vector(2)
    if content:
        raise MalformedHello("bytes after the list of server names")
    kind = names.number(1)
    name = names.vector(2)
    if kind != _HOST_NAME or names:
        raise MalformedHello("the list of server names does not hold one host name")
    return name.rest().decode("latin-1")


_RECORDS = range(20, 24)
_NO_VERSION = 0x10
"""Servers skip a warning alert before the ClientHello (OpenSSL, Go), and take its record whatever version below 16.0 it
claims (Go's crypto/tls/conn.go): so what begins like that is TLS, and malformed.
"""


class SniGate:
    """A flow's filter for the client's first bytes: they are kept back until they are judged. `host` is canonical,
    `decide` judges another host at the same port.
    """

    __slots__ = ("_buffer", "_decide", "_host", "_limit", "_reader", "rest", "state")

    def __init__(self, host: str, decide: Callable[[str], Verdict], *, limit: int = LIMIT) -> None:
        self.state = "more"
        self.rest = b""
        self._host = host
        self._decide = decide
        self._limit = limit
        self._buffer = bytearray()
        self._reader: HelloReader | None = None

    def feed(self, data: bytes) -> bytes:
        """Nothing while more is needed, then all bytes so far. Raises Cut."""
        buffer = self._buffer
        unseen = len(buffer) if len(buffer) > 1 else 0
        buffer += data
        if buffer[0] not in _RECORDS or (len(buffer) > 1 and buffer[1] >= _NO_VERSION):
            return self._open()
        if len(buffer) == 1:
            return b""
        try:
            if self._reader is None:
                self._reader = HelloReader()
            hello = self._reader.feed(bytes(buffer[unseen:]))
            if hello is not None:
                if len(hello) > self._limit:
                    raise MalformedHello("longer than a ClientHello may be")
                self._judge(server_name(hello))
                return self._open()
        except MalformedHello:
            raise Cut(Verdict(False, MALFORMED), self._host) from None
        if len(buffer) > self._limit:
            raise Cut(Verdict(False, MALFORMED), self._host)
        return b""

    def end(self) -> bytes:
        """What a client that sends no more may have passed: one byte that might have become TLS is not TLS."""
        if len(self._buffer) > 1:
            raise Cut(Verdict(False, MALFORMED), self._host)
        return self._open()

    def _open(self) -> bytes:
        self.state = "open"
        return bytes(self._buffer)

    def _judge(self, name: str | None) -> None:
        if name is None:
            return
        try:
            canonical = canonical_host(name)
        except MalformedHost:
            raise Cut(Verdict(False, MALFORMED), name[:255]) from None
        if canonical != self._host:
            verdict = self._decide(canonical)
            if not verdict.allow:
                raise Cut(Verdict(False, SNI_MISMATCH, verdict.rule, verdict.source), canonical)
