"""One normal form per host, or none. What has none is denied and never reaches a resolver.

The grammar, in the order of the code:

1. ASCII text with a colon is an IPv6 address, in brackets or not, without a zone. An IPv4-mapped address is the IPv4
   address it maps: a dual-stack socket cannot tell them apart, so no rule may either.
2. Text beyond ASCII goes through the UTS-46 mapping (case, width, ideographic full stops, ligatures), so that
   `１２７．０．０．１` is judged as the address a resolver would make of it.
3. One trailing dot is dropped.
4. Text whose last label is a number, as the WHATWG URL standard means it (digits, or `0x` and hex digits), is an IPv4
   address of four decimal parts without leading zeros, or nothing: resolvers read `127.1`, `0x7f.1`, `0177.0.0.1` and
   `2130706433` as addresses, each in its own way.
5. The rest is a name: at most 253 octets of labels, each 1 to 63 of `a-z 0-9 - _`, not beginning or ending with a
   hyphen. Labels beyond ASCII become A-labels by IDNA 2008; a label that claims to be one (`xn--`) must be the one
   A-label of what it decodes to. Underscores are not host names by RFC 1123, but the DNS is full of them.

Everything else (NUL, CR, LF, spaces, userinfo, percent, slashes, wildcards) fails the alphabet of step 5.
"""

from __future__ import annotations

from .errors import MalformedHost
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

MAX_NAME = 253
"""Octets of a name without its trailing dot (RFC 1035, 2.3.4)."""

MAX_LABEL = 63
"""Octets of a label (RFC 1035, 2.3.4)."""

MAX_TEXT = 1024
"""Characters looked at. UTS-46 drops some, so a text longer than a name may map to one, but none needs this many."""

MAX_PORT = 65535

_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")
_MAPPED = 0xFFFF  # the upper 96 bits of ::ffff:0:0/96


class Target(Value):
    """Where a request wants to go. `host` is canonical, `address` says that it is an IP literal."""

    host: str
    port: int
    address: bool


def canonical_host(text: str) -> str:
    """The one normal form of a host: a lower-case A-label name without trailing dot, a dotted quad, or a compressed
    IPv6 address without brackets. Applying it again changes nothing. Raises MalformedHost when there is none.
    """
    if not text or len(text) > MAX_TEXT:
        raise MalformedHost("empty host" if not text else f"a host of more than {MAX_TEXT} characters")
    if text.isascii():
        if ":" in text:
            return _ipv6(text)
        host = text.lower()
    else:
        host = _to_ascii(text)
    if host.endswith("."):
        host = host[:-1]
    if not _ALPHABET.issuperset(host):
        raise MalformedHost(f"not a host name or address: {text!r}")
    labels = host.split(".")
    if _is_number(labels[-1]):
        return _ipv4(host, labels)
    if len(host) > MAX_NAME:
        raise MalformedHost(f"a host name of more than {MAX_NAME} octets")
    for label in labels:
        _check_label(label, text)
    return host


def is_address(host: str) -> bool:
    """True when a canonical host is an IP literal. No canonical name has a numeric last label or a colon."""
    return ":" in host or _DIGITS.issuperset(host[host.rfind(".") + 1 :])


def parse_target(text: str, *, default_port: int = 443) -> Target:
    """The target of `host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address. Raises MalformedHost."""
    host, port = split_port(text)
    canonical = canonical_host(host)
    return Target(canonical, default_port if port is None else parse_port(port), is_address(canonical))


def split_port(text: str) -> tuple[str, str | None]:
    """The text of a host and of the port after it, None when there is none; IPv6 with a port must be in brackets.
    Neither is validated, but brackets must match.
    """
    if text.startswith("["):
        inside, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")) or ":" not in inside:
            raise MalformedHost(f"brackets that do not hold an IPv6 address: {text!r}")
        return inside, after[1:] if after else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, None


def parse_port(text: str) -> int:
    """1 to 65535, in decimal digits without leading zeros. Raises MalformedHost."""
    if text and len(text) <= 5 and _DIGITS.issuperset(text) and text[0] != "0" and int(text) <= MAX_PORT:
        return int(text)
    raise MalformedHost(f"not a port: {text!r}")


def parse_ipv4(text: str) -> int | None:
    """The number of a dotted quad of four decimal parts without leading zeros, else None."""
    parts = text.split(".")
    if len(parts) != 4:
        return None
    number = 0
    for part in parts:
        if not part or len(part) > 3 or not _DIGITS.issuperset(part) or (part[0] == "0" and part != "0"):
            return None
        number = number << 8 | int(part)
        if number & 0xFF != int(part):
            return None
    return number


def format_ipv4(number: int) -> str:
    """The dotted quad of a 32-bit number."""
    return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def parse_ipv6(text: str) -> int | None:
    """The number of an IPv6 address without zone or brackets, else None."""
    from ipaddress import AddressValueError, IPv6Address  # only those who meet one pay for the import

    if "%" in text or not text.isascii():
        return None
    try:
        return int(IPv6Address(text))
    except AddressValueError:
        return None


def format_ipv6(number: int) -> str:
    """RFC 5952 text of a 128-bit number; of an IPv4-mapped one, the dotted quad."""
    from ipaddress import IPv6Address

    if number >> 32 == _MAPPED:
        return format_ipv4(number & 0xFFFFFFFF)
    return str(IPv6Address(number))


def _ipv6(text: str) -> str:
    inside = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    number = parse_ipv6(inside)
    if number is None:
        raise MalformedHost(f"not an IPv6 address (without zone, and a port only after brackets): {text!r}")
    return format_ipv6(number)


def _ipv4(host: str, labels: list[str]) -> str:
    if len(labels) != 4 or parse_ipv4(host) is None:
        raise MalformedHost(f"a host that ends in a number must be four decimal parts of 0 to 255: {host!r}")
    return host


def _is_number(label: str) -> bool:
    """The WHATWG URL standard's "ends in a number" checker, for one lower-case label."""
    if not label:
        return False
    return _DIGITS.issuperset(label) or (label.startswith("0x") and _HEX.issuperset(label[2:]))


def _check_label(label: str, text: str) -> None:
    if not label or len(label) > MAX_LABEL:
        what = "an empty label" if not label else f"a label of more than {MAX_LABEL} octets"
        raise MalformedHost(f"{what} in {text!r}")
    if label[0] == "-" or label[-1] == "-":
        raise MalformedHost(f"a label that begins or ends with a hyphen in {text!r}")
    if label.startswith("xn--"):
        _check_a_label(label, text)


def _check_a_label(label: str, text: str) -> None:
    """An A-label must be what its decoded form encodes to, or two spellings would name one host."""
    idna = _idna(text)
    try:
        unicode = idna.ulabel(label)
        if not unicode.isascii() and idna.alabel(idna.uts46_remap(unicode, False)).decode() == label:
            return
    except (ValueError, IndexError):
        pass
    raise MalformedHost(f"{label!r} is not the IDNA form of anything in {text!r}")


def _idna(text: str) -> ModuleType:
    """5 ms and a table of 300 KiB: only for text that needs it. MalformedHost where it cannot be loaded now, as when
    descriptors have run out.
    """
    try:
        import idna
    except (ImportError, OSError) as error:
        raise MalformedHost(f"cannot be judged by IDNA at the moment ({error}): {text!r}") from None
    return idna


def _to_ascii(text: str) -> str:
    """Lower-case ASCII by UTS-46 and IDNA 2008; labels are split before they are encoded, and joined by plain dots."""
    idna = _idna(text)
    try:
        labels = idna.uts46_remap(text, False).split(".")
        return ".".join(label if label.isascii() else idna.alabel(label).decode() for label in labels)
    except (ValueError, IndexError) as error:
        raise MalformedHost(f"not a host name by IDNA 2008: {text!r}") from error
