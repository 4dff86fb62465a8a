"""What an upstream proxy is told so that it makes a tunnel, and what it answers. Bytes in, bytes out, no sockets.

HTTP: CONNECT with a name. SOCKS5 (RFC 1928, 1929): the same; the name is always sent as such, so both socks5:// and
socks5h:// leave resolving to the proxy.
"""

from __future__ import annotations

from skep_policy import is_address
from skep_policy.hosts import parse_ipv4, parse_ipv6

from . import http1
from .upstream import Hop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

MAX_HEAD = 16384
"""Bytes of an HTTP proxy's answer."""

_SOCKS = 5
_NO_AUTHENTICATION, _USER_AND_PASSWORD = 0, 2
_IPV4, _DOMAIN, _IPV6 = 1, 3, 4
_REFUSALS = {
    1: "failed",
    2: "does not allow that host",
    3: "has no route to that network",
    4: "cannot reach or resolve that host",
    5: "says that the connection was refused",
    6: "says that the connection timed out",
}


class Refused(Exception):
    """There will be no tunnel; the text says what the proxy did."""


if TYPE_CHECKING:

    class Ask(Protocol):
        """One conversation. Of what the proxy says, `wanted` bytes are fed, and not one of the tunnel behind them."""

        first: bytes

        def wanted(self, seen: bytes) -> int:
            """How many of these bytes, the next of the proxy, are part of its answer; at least one."""
            ...

        def feed(self, data: bytes) -> bytes | None:
            """What to say next, which may be nothing yet; None when the tunnel stands. Raises Refused."""
            ...


def ask(hop: Hop, host: str, port: int) -> Ask:
    return AskSocks(hop, host, port) if hop.kind == "socks5" else AskHttp(hop, host, port)


class AskHttp:
    """CONNECT."""

    __slots__ = ("_head", "first")

    def __init__(self, hop: Hop, host: str, port: int) -> None:
        where = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        self.first = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (where, where, hop.field)
        self._head = b""

    def wanted(self, seen: bytes) -> int:
        before = len(self._head)
        end = http1.head_end(self._head + seen, before)
        return end - before if end >= 0 else len(seen)

    def feed(self, data: bytes) -> bytes | None:
        self._head += data
        if len(self._head) > MAX_HEAD:
            raise Refused("sent an endless answer")
        if http1.head_end(self._head, len(self._head) - len(data)) < 0:
            return b""
        try:
            response = http1.parse_response(self._head)
        except http1.BadMessage as bad:
            raise Refused(f"answered something that is not HTTP: {bad.problem}") from None
        if not 200 <= response.status < 300:
            raise Refused(f"answered {response.status} {response.phrase.decode('latin-1')}".rstrip())
        return None


class AskSocks:
    """A choice of method, credentials where it wants them, and CONNECT; each answer is of known length."""

    __slots__ = ("_answer", "_credentials", "_need", "_request", "_step", "first")

    def __init__(self, hop: Hop, host: str, port: int) -> None:
        self._credentials = hop.authorization
        methods = bytes((_NO_AUTHENTICATION, *([_USER_AND_PASSWORD] if hop.authorization else [])))
        self.first = bytes((_SOCKS, len(methods))) + methods
        self._request = bytes((_SOCKS, 1, 0)) + _address(host) + port.to_bytes(2, "big")
        self._answer = b""
        self._step = "method"
        self._need = 2

    def wanted(self, seen: bytes) -> int:
        return min(len(seen), self._need - len(self._answer))

    def feed(self, data: bytes) -> bytes | None:
        self._answer += data
        if len(self._answer) < self._need:
            return b""
        match self._step:
            case "method":
                return self._chosen()
            case "credentials":
                if self._answer[1] != 0:
                    raise Refused("does not take the user and password it was given")
                return self._next("reply", 5, self._request)
            case _:
                return self._replied()

    def _next(self, step: str, need: int, say: bytes) -> bytes:
        self._step, self._need, self._answer = step, need, b""
        return say

    def _chosen(self) -> bytes:
        version, method = self._answer
        if version != _SOCKS:
            raise Refused("answered something that is not SOCKS5")
        if method == _NO_AUTHENTICATION:
            return self._next("reply", 5, self._request)
        if method == _USER_AND_PASSWORD and self._credentials is not None:
            return self._next("credentials", 2, self._credentials)
        raise Refused("wants a user and password" if self._credentials is None else "wants other credentials")

    def _replied(self) -> bytes | None:
        version, code, _, kind, first = self._answer[:5]
        if version != _SOCKS:
            raise Refused("answered something that is not SOCKS5")
        if code != 0:
            raise Refused(_REFUSALS.get(code, f"answered with code {code}"))
        sizes = {_IPV4: 4, _IPV6: 16, _DOMAIN: 1 + first}
        if kind not in sizes:
            raise Refused("answered something that is not SOCKS5")
        self._need = 4 + sizes[kind] + 2
        return b"" if len(self._answer) < self._need else None


def _address(host: str) -> bytes:
    if not is_address(host):
        name = host.encode("ascii")
        return bytes((_DOMAIN, len(name))) + name
    if ":" in host:
        return bytes((_IPV6,)) + (parse_ipv6(host) or 0).to_bytes(16, "big")
    return bytes((_IPV4,)) + (parse_ipv4(host) or 0).to_bytes(4, "big")
