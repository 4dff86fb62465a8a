"""What a proxy changes in the heads of one request and its response. Pure."""

from __future__ import annotations

from skep_policy import MalformedHost, Target, parse_target
from skep_policy.value import Value

from .http1 import BadMessage, Body, Request, Response, end_to_end
from .upstream import Hop

IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS"))
"""Methods that may be sent a second time when a kept connection turns out to be dead (RFC 9110 section 9.2.2)."""

_HOST = frozenset((b"host",))
_SCHEME = b"http://"


class Destination(Value):
    """Where an absolute-form request goes. `target` is None when `authority` is no host."""

    authority: str
    target: Target | None
    path: bytes


def destination(request: Request) -> Destination:
    """The parts of `http://HOST[:PORT]/PATH`. Raises BadMessage for anything but that form."""
    raw = request.target
    if raw[: len(_SCHEME)].lower() != _SCHEME:
        if raw.startswith(b"/") or raw == b"*":
            raise BadMessage("this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT")
        raise BadMessage("only http:// is forwarded; ask for anything else with CONNECT HOST:PORT")
    if b"#" in raw:
        raise BadMessage("a request target has no fragment")
    after = raw[len(_SCHEME) :]
    end = min((at for at in (after.find(b"/"), after.find(b"?")) if at >= 0), default=len(after))
    authority, path = after[:end].decode("ascii"), after[end:]
    if not path.startswith(b"/"):
        path = b"*" if request.method == b"OPTIONS" and not path else b"/" + path
    try:
        target = parse_target(authority.removesuffix(":"), default_port=80)
    except MalformedHost:
        target = None
    return Destination(authority, target, path)


def upgrade_asked(request: Request) -> bytes | None:
    """The protocols a request offers to switch to, None when it does not or cannot."""
    offered = request.get(b"upgrade")
    return offered if offered and b"upgrade" in request.options and request.minor == 1 and request.body.empty else None


def request_head(request: Request, target: Target, path: bytes, *, hop: Hop | None = None) -> bytes:
    """What the origin is sent, or an upstream proxy. Host is what the target says, whatever the client's own Host field
    said.
    """
    host = f"[{target.host}]" if ":" in target.host else target.host
    if target.port != 80:
        host += f":{target.port}"
    where = path if hop is None else _SCHEME + host.encode() + (b"" if path == b"*" else path)
    parts = [b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (request.method, where, host.encode())]
    parts.append(end_to_end(request.headers, request.options, drop=_HOST))
    if request.body.chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    offered = upgrade_asked(request)
    if offered is not None:
        parts.append(b"Connection: upgrade\r\nUpgrade: %b\r\n" % offered)
    if hop is not None:
        parts.append(hop.field)
    parts.append(b"\r\n")
    return b"".join(parts)


def response_head(response: Response, body: Body, *, close: bool, minor: int) -> bytes:
    """What the client is sent; `minor` is the version it spoke."""
    phrase = b" " + response.phrase if response.phrase else b" "
    parts = [b"HTTP/1.1 %d%b\r\n" % (response.status, phrase)]
    parts.append(end_to_end(response.headers, response.options))
    if body.chunked and minor:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if response.status == 101:
        offered = next((value for lower, _, value in response.headers if lower == b"upgrade"), b"")
        parts.append(b"Connection: upgrade\r\nUpgrade: %b\r\n" % offered)
    elif close and response.status >= 200:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)
