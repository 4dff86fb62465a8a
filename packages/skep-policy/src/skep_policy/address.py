"""What kind of place an IP address is. Only "global" may be dialled on the strength of a name.

The tables are our own, from the IANA special-purpose registries for IPv4 and IPv6 (RFC 6890 and the RFCs beside each
line): the standard library's `is_global` changed its mind between Python releases. IPv6 is default-deny: what is not in
2000::/3, the space IANA hands out, is "reserved" unless a line says otherwise.

An IPv6 address that carries an IPv4 address is judged by it: somewhere on the path a translator or tunnel turns it into
that address, and a resolver's owner can hand out `64:ff9b::7f00:1` as easily as `127.0.0.1`.
"""

from __future__ import annotations

from .hosts import format_ipv4, format_ipv6, parse_ipv4, parse_ipv6

GLOBAL = "global"
LOOPBACK = "loopback"
METADATA = "metadata"
NO_ADDRESS = "malformed"

# First match wins, so an exception stands before its network.
_IPV4: tuple[tuple[str, str], ...] = (
    ("169.254.169.254/32", METADATA),  # AWS, GCP, Azure, OpenStack and others
    ("169.254.170.2/32", METADATA),  # AWS container credentials
    ("169.254.170.23/32", METADATA),  # AWS pod identity
    ("100.100.100.200/32", METADATA),  # Alibaba Cloud
    ("168.63.129.16/32", METADATA),  # Azure's host endpoint, in global space
    ("192.0.0.192/32", METADATA),  # Oracle Cloud
    ("0.0.0.0/8", "unspecified"),  # RFC 1122 3.2.1.3; Linux connects 0.0.0.0 to loopback
    ("10.0.0.0/8", "private"),  # RFC 1918
    ("100.64.0.0/10", "cgnat"),  # RFC 6598
    ("127.0.0.0/8", LOOPBACK),  # RFC 1122 3.2.1.3
    ("169.254.0.0/16", "link-local"),  # RFC 3927
    ("172.16.0.0/12", "private"),  # RFC 1918
    ("192.0.0.0/24", "reserved"),  # RFC 6890, IETF protocol assignments
    ("192.0.2.0/24", "documentation"),  # RFC 5737
    ("192.88.99.0/24", "reserved"),  # RFC 7526, the former 6to4 relay anycast
    ("192.168.0.0/16", "private"),  # RFC 1918
    ("198.18.0.0/15", "benchmarking"),  # RFC 2544; also the range transparent egress makes its addresses from
    ("198.51.100.0/24", "documentation"),  # RFC 5737
    ("203.0.113.0/24", "documentation"),  # RFC 5737
    ("224.0.0.0/4", "multicast"),  # RFC 5771
    ("255.255.255.255/32", "broadcast"),  # RFC 919
    ("240.0.0.0/4", "reserved"),  # RFC 1112
)

# (upper bits, how many, class). Written as numbers: the module is on the path of every start, `ipaddress` is not.
_IPV6: tuple[tuple[int, int, str], ...] = (
    (0xFD00_0EC2_0000_0000_0000_0000_0000_0254, 128, METADATA),  # fd00:ec2::254, AWS
    (0xFD20_00CE_0000_0000_0000_0000_0000_0254, 128, METADATA),  # fd20:ce::254, GCP
    (0, 128, "unspecified"),  # ::, RFC 4291; Linux connects it to loopback
    (1, 128, LOOPBACK),  # ::1, RFC 4291
    (0x2001_0DB8, 32, "documentation"),  # RFC 3849
    (
        0x2001_0000 >> 9,
        23,
        "reserved",
    ),  # 2001::/23, RFC 2928: benchmarking, ORCHID, AMT, drone ids; Teredo is judged before
    (0x3FFF_0, 20, "documentation"),  # 3fff::/20, RFC 9637
    (0xFC00 >> 9, 7, "ula"),  # fc00::/7, RFC 4193
    (0xFE80 >> 6, 10, "link-local"),  # fe80::/10, RFC 4291
    (0xFEC0 >> 6, 10, "site-local"),  # fec0::/10, RFC 3879
    (0xFF, 8, "multicast"),  # ff00::/8, RFC 4291
    (0x0064_FF9B_0001, 48, "nat64"),  # 64:ff9b:1::/48, RFC 8215: local use, and where the IPv4 stands is not known
    (0x2000 >> 13, 3, GLOBAL),  # 2000::/3
)

_LOW32 = 0xFFFFFFFF


def _compile(table: tuple[tuple[str, str], ...]) -> tuple[tuple[int, int, str], ...]:
    """(upper bits, how far to shift to get them, class)."""
    compiled: list[tuple[int, int, str]] = []
    for network, kind in table:
        address, _, length = network.partition("/")
        shift = 32 - int(length)
        compiled.append(((parse_ipv4(address) or 0) >> shift, shift, kind))
    return tuple(compiled)


_COMPILED_IPV4 = _compile(_IPV4)


REMEMBERED = 1024
"""Addresses whose class is kept: proxies dial the same few again and again."""

_classes: dict[str, str] = {}


def classify(ip: str) -> str:
    """ "global", or why the address is not: loopback, private, cgnat, link-local, metadata, multicast, unspecified,
    ula, site-local, documentation, benchmarking, broadcast, nat64, reserved; "malformed" for what is no address.

    IPv6 that embeds IPv4 has the class of what it embeds. An address with a zone (`fe80::1%eth0`, as resolvers return
    them) is never global.
    """
    kind = _classes.get(ip)
    if kind is None:
        if len(_classes) >= REMEMBERED:
            _classes.clear()
        kind = _classes[ip] = _classify(ip)
    return kind


def _classify(ip: str) -> str:
    ip, zone, _ = ip.partition("%")
    number = parse_ipv4(ip)
    if number is not None:
        return NO_ADDRESS if zone else _classify_ipv4(number)
    number = parse_ipv6(ip) if ":" in ip else None
    if number is None:
        return NO_ADDRESS
    kind = _classify_ipv6(number)
    return "reserved" if zone and kind == GLOBAL else kind


def aliases(host: str) -> tuple[str, ...]:
    """Other spellings of the place a canonical address leads to: the IPv4 addresses an IPv6 one embeds, and loopback
    for the unspecified ones. A rule that denies one of these denies the address.
    """
    if host == "0.0.0.0":
        return ("127.0.0.1",)
    if ":" not in host:
        return ()
    number = parse_ipv6(host)
    if number is None:
        return ()
    if number == 0:
        return ("127.0.0.1", "::1")
    found = [format_ipv4(inner) for inner in _embedded(number)]
    return tuple(dict.fromkeys(found + [alias for inner in found for alias in aliases(inner)]))


def parse_network(text: str) -> tuple[str, int] | None:
    """(canonical network address, prefix length) of an address or a CIDR network without host bits, else None. A
    network inside ::ffff:0:0/96 is the IPv4 network it maps.
    """
    address, slash, length = text.partition("/")
    number = parse_ipv4(address)
    width = 32
    if number is None:
        number, width = parse_ipv6(address), 128
    if number is None:
        return None
    if not slash:
        prefix = width
    elif length.isascii() and length.isdigit() and str(int(length)) == length and int(length) <= width:
        prefix = int(length)
    else:
        return None
    if number & ((1 << width - prefix) - 1):
        return None
    if width == 128 and number >> 32 == 0xFFFF and prefix >= 96:
        return format_ipv4(number & _LOW32), prefix - 96
    return (format_ipv4(number) if width == 32 else format_ipv6(number)), prefix


def number_of(host: str) -> tuple[int, int]:
    """(number, width in bits) of a canonical address."""
    number = parse_ipv6(host) if ":" in host else parse_ipv4(host)
    if number is None:
        raise ValueError(f"not a canonical address: {host!r}")
    return number, 128 if ":" in host else 32


def _classify_ipv4(number: int) -> str:
    for bits, shift, kind in _COMPILED_IPV4:
        if number >> shift == bits:
            return kind
    return GLOBAL


def _classify_ipv6(number: int) -> str:
    embedded = _embedded(number)
    for inner in embedded:
        kind = _classify_ipv4(inner)
        if kind != GLOBAL:
            return kind
    if embedded and _carries_only_ipv4(number):
        return GLOBAL
    for bits, length, kind in _IPV6:
        if number >> (128 - length) == bits:
            return kind
    return "reserved"


def _embedded(number: int) -> list[int]:
    """The IPv4 addresses an IPv6 address carries, by the prefixes that say so."""
    low, high96 = number & _LOW32, number >> 32
    if high96 in (0xFFFF, 0xFFFF_0000):  # ::ffff:0:0/96 mapped (RFC 4291), ::ffff:0:0:0/96 translated (RFC 2765)
        return [low]
    if high96 == 0 and low > 1:  # ::/96 compatible (RFC 4291), but :: and ::1
        return [low]
    if high96 == 0x0064_FF9B << 64:  # 64:ff9b::/96 (RFC 6052)
        return [low]
    if number >> 80 == 0x0064_FF9B_0001:  # 64:ff9b:1::/48 (RFC 8215): the end of a /96, or around the u octet of a /48
        return [inner for inner in (low, (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF) if inner]
    if number >> 112 == 0x2002:  # 2002::/16 6to4 (RFC 3056)
        return [number >> 80 & _LOW32]
    if high96 >> 64 == 0x2001_0000:  # 2001::/32 Teredo (RFC 4380): the server, and the client with its bits flipped
        return [number >> 64 & _LOW32, low ^ _LOW32]
    if high96 & _LOW32 in (0x0000_5EFE, 0x0200_5EFE):  # ISATAP interface identifiers (RFC 5214)
        return [low]
    return []


def _carries_only_ipv4(number: int) -> bool:
    """True for the prefixes whose addresses lead nowhere but to the IPv4 address inside; ISATAP keeps its own prefix,
    and the compatible and local NAT64 forms are no part of the global Internet.
    """
    high96 = number >> 32
    return high96 in (0xFFFF, 0xFFFF_0000, 0x0064_FF9B << 64) or number >> 112 == 0x2002 or high96 >> 64 == 0x2001_0000
