"""SOCKS5 (RFC 1928), CONNECT only, without authentication or with user and password (RFC 1929). Bytes in, values out,
no sockets.

`socks5h://` is the form in which the client sends the name; a client that resolved it first sends an address, and is
judged by that address.
"""

from __future__ import annotations

from skep_policy.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


VERSION = 5
NO_AUTHENTICATION = b"\x05\x00"
USER_AND_PASSWORD = b"\x05\x02"
NO_ACCEPTABLE_METHOD = b"\x05\xff"
ADMITTED = b"\x01\x00"
NOT_ADMITTED = b"\x01\x01"

SUCCEEDED = 0
GENERAL_FAILURE = 1
NOT_ALLOWED = 2
NETWORK_UNREACHABLE = 3
HOST_UNREACHABLE = 4
CONNECTION_REFUSED = 5
COMMAND_NOT_SUPPORTED = 7
ADDRESS_TYPE_NOT_SUPPORTED = 8

_CODES = {
    "netunreach": NETWORK_UNREACHABLE,
    "connrefused": CONNECTION_REFUSED,
    "hostunreach": HOST_UNREACHABLE,
    "timeout": HOST_UNREACHABLE,
    "unresolvable": HOST_UNREACHABLE,
}

_CONNECT = 1
_IPV4, _DOMAIN, _IPV6 = 1, 3, 4


class BadSocks(Exception):
    """The client cannot be served; `answer` tells it so, as far as the protocol can."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("not a SOCKS5 CONNECT")
        self.answer = answer


class Step(Value):
    """What was understood: `answer` goes to the client; with kind "request", `host` and `port` are what it asks for."""

    kind: Literal["greeting", "request"]
    answer: bytes = b""
    host: str = ""
    port: int = 0


def greeting(data: bytes, *, password: bool = False) -> tuple[Step, int] | None:
    """The method selection at the beginning of `data` and its length; None while it is incomplete. `password` asks for
    one. Raises BadSocks.
    """
    if len(data) < 2 or len(data) < 2 + data[1]:
        return None
    chosen = USER_AND_PASSWORD if password else NO_AUTHENTICATION
    if chosen[1] not in data[2 : 2 + data[1]]:
        raise BadSocks(NO_ACCEPTABLE_METHOD)
    return Step("greeting", chosen), 2 + data[1]


def credentials(data: bytes) -> tuple[bytes, bytes, int] | None:
    """User and password at the beginning of `data`, and their length; None while it is incomplete. Raises BadSocks."""
    if data[:1] not in (b"", b"\x01"):
        raise BadSocks(NOT_ADMITTED)
    if len(data) < 2 or len(data) < 3 + data[1]:
        return None
    user_end = 2 + data[1]
    end = user_end + 1 + data[user_end]
    return (data[2:user_end], data[user_end + 1 : end], end) if len(data) >= end else None


def request(data: bytes) -> tuple[Step, int] | None:
    """The request at the beginning of `data` and its length; None while it is incomplete. Raises BadSocks."""
    if len(data) < 5:
        return None
    version, command, reserved, kind, first = data[:5]
    if version != VERSION or reserved != 0:
        raise BadSocks(reply(GENERAL_FAILURE))
    if command != _CONNECT:
        raise BadSocks(reply(COMMAND_NOT_SUPPORTED))
    sizes = {_IPV4: 4, _IPV6: 16, _DOMAIN: 1 + first}
    if kind not in sizes:
        raise BadSocks(reply(ADDRESS_TYPE_NOT_SUPPORTED))
    end = 4 + sizes[kind] + 2
    if len(data) < end:
        return None
    address, port = data[4 : end - 2], int.from_bytes(data[end - 2 : end], "big")
    return Step("request", host=_text(kind, address), port=port), end


def reply(code: int) -> bytes:
    """The answer to a request; the bound address is never told."""
    return bytes((VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0))


def code_of(reason: str) -> int:
    """The reply code for a dial failure's reason."""
    return _CODES.get(reason, GENERAL_FAILURE)


def _text(kind: int, address: bytes) -> str:
    if kind == _IPV4:
        return ".".join(map(str, address))
    if kind == _IPV6:
        return ":".join(f"{address[at] << 8 | address[at + 1]:x}" for at in range(0, 16, 2))
    return address[1:].decode("latin-1")
