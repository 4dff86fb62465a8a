"""The operator's own way out: the proxies of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, and what `NO_PROXY` exempts.
Pure.

- Tunnels go through `HTTPS_PROXY`, plain HTTP requests through `HTTP_PROXY`, either through `ALL_PROXY` when its own
  is unset. Lower-case names win; `HTTP_PROXY` is not believed where `REQUEST_METHOD` is set, since a CGI client can
  set it.
- `NO_PROXY` is a list of names (each with what is below it), addresses, CIDR networks, each with or without a port;
  `*` exempts all. Names are not resolved for it. Loopback is always exempt.
- `http://`, `socks5://` and `socks5h://` proxies, with or without `user:password@`, never seen by clients. With
  `socks5://` names are resolved by the proxy as well.

What goes through an upstream proxy is resolved there, so its addresses cannot be checked here: rules and literal
addresses are decided as ever, private addresses behind allowed names are the upstream proxy's to refuse.
"""

from __future__ import annotations

from binascii import b2a_base64

from skep_policy import MalformedHost, canonical_host, is_address, parse_target
from skep_policy.address import parse_network
from skep_policy.hosts import parse_ipv4, parse_ipv6, split_port
from skep_policy.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal


class UpstreamError(ValueError):
    """A proxy variable that cannot be used. The text never holds the password."""


_KINDS: dict[str, tuple[Literal["http", "socks5"], int]] = {
    "http": ("http", 80),
    "socks5": ("socks5", 1080),
    "socks5h": ("socks5", 1080),
}
"""By scheme: how it is spoken to, and its port where none is written."""


class Hop(Value):
    """One upstream proxy. `authorization` is the value of Proxy-Authorization, or the message with user and password
    of RFC 1929.
    """

    host: str
    port: int
    authorization: bytes | None = None
    kind: Literal["http", "socks5"] = "http"

    def __repr__(self) -> str:
        return f"Hop({self.host}:{self.port})"

    @property
    def field(self) -> bytes:
        """The header line for an HTTP proxy, if any."""
        return b"" if self.authorization is None else b"Proxy-Authorization: %b\r\n" % self.authorization


class Exempt(Value):
    """One entry of NO_PROXY. `network` is (number, prefix length, width)."""

    name: str = ""
    network: tuple[int, int, int] | None = None
    port: int | None = None

    def matches(self, host: str, port: int) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is None:
            return not is_address(host) and (host == self.name or host.endswith("." + self.name))
        base, prefix, width = self.network
        number = parse_ipv6(host) if ":" in host else parse_ipv4(host)
        if number is None or (width == 128) != (":" in host):
            return False
        return number >> width - prefix == base >> width - prefix


class Upstream(Value):
    """Which proxy, if any, a connection goes through."""

    plain: Hop | None = None
    tunnel: Hop | None = None
    exempt: tuple[Exempt, ...] = ()
    exempt_all: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Upstream:
        """What the variables say. Raises UpstreamError for one that cannot be used."""
        plain = _variable(environ, "http_proxy", "all_proxy")
        tunnel = _variable(environ, "https_proxy", "all_proxy")
        entries = (environ.get("no_proxy") or environ.get("NO_PROXY") or "").replace(",", " ").split()
        exempt = tuple(found for entry in entries if (found := _exempt(entry)) is not None)
        return cls(plain, tunnel, exempt, "*" in entries)

    def hop(self, host: str, port: int, *, plain: bool) -> Hop | None:
        """The proxy for a canonical host, None to go there directly."""
        hop = self.plain if plain else self.tunnel
        if hop is None or self.exempt_all:
            return None
        if host == "localhost" or host.endswith(".localhost") or host == "::1" or host.startswith("127."):
            return None
        return None if any(exempt.matches(host, port) for exempt in self.exempt) else hop


def parse_hop(text: str, *, source: str = "proxy") -> Hop:
    """A proxy from its URL. Raises UpstreamError."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "http", text.strip()
    kind, default_port = _KINDS.get(scheme.lower(), (None, 0))
    if kind is None:
        raise UpstreamError(
            f"{source}: {scheme[:20]}:// upstream proxies are not supported; write http://HOST:PORT or "
            f"socks5h://HOST:PORT, or unset {source} to go without"
        )
    authority = rest.partition("/")[0]
    userinfo, at, address = authority.rpartition("@")
    try:
        target = parse_target(address, default_port=default_port)
    except MalformedHost:
        raise UpstreamError(f"{source}: no host in an upstream proxy URL; write {scheme}://HOST:PORT") from None
    if not at:
        return Hop(target.host, target.port, kind=kind)
    from urllib.parse import unquote_to_bytes  # few have a password in a URL, and all would pay for the import

    user, _, password = userinfo.partition(":")
    shown = unquote_to_bytes(user), unquote_to_bytes(password)
    if kind == "socks5":
        if not all(0 < len(part) < 256 for part in shown):
            raise UpstreamError(f"{source}: a SOCKS5 user and password have 1 to 255 bytes each")
        message = b"\x01" + b"".join(bytes((len(part),)) + part for part in shown)
        return Hop(target.host, target.port, message, kind)
    return Hop(target.host, target.port, b"Basic " + b2a_base64(b":".join(shown), newline=False))


def _variable(environ: Mapping[str, str], *names: str) -> Hop | None:
    for name in names:
        for spelling in (name, name.upper()):
            if spelling == "HTTP_PROXY" and "REQUEST_METHOD" in environ:
                continue
            value = environ.get(spelling)
            if value:
                return parse_hop(value, source=spelling)
    return None


def _exempt(entry: str) -> Exempt | None:
    """None for what matches nothing, as other tools ignore it."""
    network = parse_network(entry)
    try:
        host, port_text = (entry, None) if network is not None else split_port(entry)
        port = int(port_text) if port_text else None
        network = network or parse_network(host)
        if network is not None:
            address, prefix = network
            number = parse_ipv6(address) if ":" in address else parse_ipv4(address)
            return Exempt(network=(number or 0, prefix, 128 if ":" in address else 32), port=port)
        return Exempt(canonical_host(host.removeprefix("*").lstrip(".")), port=port)
    except (MalformedHost, ValueError):
        return None
