"""Address classes, and what an address may be embedded in."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import classify
from skep_policy.address import aliases, parse_network

CLASSES = [
    ("8.8.8.8", "global"),
    ("1.1.1.1", "global"),
    ("192.0.3.1", "global"),
    ("11.0.0.0", "global"),
    ("172.32.0.0", "global"),
    ("223.255.255.255", "global"),
    ("2606:4700::1111", "global"),
    ("2a00::", "global"),
    ("0.0.0.0", "unspecified"),
    ("0.255.0.1", "unspecified"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.255", "loopback"),
    ("10.0.0.1", "private"),
    ("172.16.0.0", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "cgnat"),
    ("100.127.255.255", "cgnat"),
    ("169.254.1.1", "link-local"),
    ("169.254.169.254", "metadata"),
    ("169.254.170.2", "metadata"),
    ("100.100.100.200", "metadata"),
    ("168.63.129.16", "metadata"),
    ("192.0.0.1", "reserved"),
    ("192.0.0.192", "metadata"),
    ("192.0.2.1", "documentation"),
    ("198.51.100.255", "documentation"),
    ("203.0.113.0", "documentation"),
    ("192.88.99.1", "reserved"),
    ("198.18.0.1", "benchmarking"),
    ("198.19.255.255", "benchmarking"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("fe80::1", "link-local"),
    ("fe80::1%eth0", "link-local"),
    ("febf::1", "link-local"),
    ("fec0::1", "site-local"),
    ("fc00::1", "ula"),
    ("fdff::1", "ula"),
    ("fd00:ec2::254", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("fd5b:6b65:7000::1", "ula"),
    ("ff02::1", "multicast"),
    ("2001:db8::1", "documentation"),
    ("3fff::1", "documentation"),
    ("3fff:fff::1", "documentation"),
    ("2001:2::1", "reserved"),
    ("2001:10::1", "reserved"),
    ("2001:20::1", "reserved"),
    ("2001:1ff::1", "reserved"),
    ("2001:200::1", "global"),
    ("100::1", "reserved"),
    ("5f00::1", "reserved"),
    ("4000::1", "reserved"),
    ("::2", "unspecified"),
    ("2606:4700::1111%eth0", "reserved"),
]

# (prefix that carries an IPv4 address, how to write the IPv6 address of one)
EMBEDDINGS: dict[str, Callable[[int], int]] = {
    "mapped": lambda n: n | 0xFFFF << 32,
    "compatible": lambda n: n,
    "translated": lambda n: n | 0xFFFF << 48,
    "nat64": lambda n: n | 0x64FF9B << 96,
    "local nat64": lambda n: n | 0x64FF9B0001 << 80,
    "local nat64, /48": lambda n: 0x64FF9B0001 << 80 | (n >> 16) << 64 | (n & 0xFFFF) << 40,
    "6to4": lambda n: 0x2002 << 112 | n << 80 | 1,
    "teredo client": lambda n: 0x20010000 << 96 | 0x08080808 << 64 | (n ^ 0xFFFFFFFF),
    "teredo server": lambda n: 0x20010000 << 96 | n << 64 | (0x08080808 ^ 0xFFFFFFFF),
    "isatap": lambda n: 0x26064700 << 96 | 0x00005EFE << 32 | n,
    "isatap, global": lambda n: 0x26064700 << 96 | 0x02005EFE << 32 | n,
}


@pytest.mark.parametrize(("address", "kind"), CLASSES)
def test_classifies(address: str, kind: str) -> None:
    assert classify(address) == kind


@pytest.mark.parametrize("text", ["", "a", "1.2.3", "1.2.3.4%eth0", "1.2.3.04", "::1::", "[::1]", "127.1", "٣.٣.٣.٣"])
def test_what_is_no_address_is_malformed_and_so_not_global(text: str) -> None:
    assert classify(text) == "malformed"


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize(
    "inner", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "100.64.1.1", "224.0.0.1"]
)
def test_ipv6_is_judged_by_the_ipv4_it_embeds(embedding: str, inner: str) -> None:
    number = EMBEDDINGS[embedding](int(ipaddress.IPv4Address(inner)))
    outer = str(ipaddress.IPv6Address(number))
    assert classify(outer) == classify(inner)
    assert inner in aliases(outer)


@pytest.mark.parametrize("embedding", ["mapped", "translated", "nat64", "6to4", "teredo client", "isatap"])
def test_ipv6_that_embeds_a_global_ipv4_is_global(embedding: str) -> None:
    outer = str(ipaddress.IPv6Address(EMBEDDINGS[embedding](int(ipaddress.IPv4Address("8.8.8.8")))))
    assert classify(outer) == "global"


@pytest.mark.parametrize("embedding", ["compatible", "local nat64", "local nat64, /48"])
def test_ipv6_forms_of_no_global_use_are_not_global_whatever_they_embed(embedding: str) -> None:
    outer = str(ipaddress.IPv6Address(EMBEDDINGS[embedding](int(ipaddress.IPv4Address("8.8.8.8")))))
    assert classify(outer) != "global"


@given(st.integers(0, 2**32 - 1))
def test_nothing_the_standard_library_knows_to_be_special_is_global_in_ipv4(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    special = address.is_private or address.is_multicast or address.is_reserved or address.is_loopback
    if special or address.is_link_local or address.is_unspecified:
        assert classify(str(address)) != "global"


@given(st.integers(0, 2**128 - 1) | st.integers(0, 2**32 - 1).map(lambda n: n << 96) | st.integers(0, 2**40))
def test_nothing_the_standard_library_knows_to_be_special_is_global_in_ipv6(number: int) -> None:
    address = ipaddress.IPv6Address(number)
    special = address.is_private or address.is_multicast or address.is_loopback or address.is_site_local
    if (special or address.is_link_local or address.is_unspecified) and not aliases(str(address)):
        assert classify(str(address)) != "global"


@given(st.integers(0, 2**128 - 1))
def test_only_the_space_iana_hands_out_is_global(number: int) -> None:
    if classify(str(ipaddress.IPv6Address(number))) == "global":
        embeds = number >> 32 in (0xFFFF, 0xFFFF0000, 0x64FF9B << 64)
        assert number >> 125 == 1 or embeds


@given(st.text(max_size=30) | st.integers(0, 2**128 - 1).map(lambda n: str(ipaddress.IPv6Address(n))))
def test_no_text_breaks_it(text: str) -> None:
    assert classify(text)
    aliases(text)
    parse_network(text)


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", ("10.0.0.0", 8)),
        ("10.0.0.1", ("10.0.0.1", 32)),
        ("0.0.0.0/0", ("0.0.0.0", 0)),
        ("2001:DB8::/32", ("2001:db8::", 32)),
        ("::/0", ("::", 0)),
        ("::1", ("::1", 128)),
        ("::ffff:10.0.0.0/104", ("10.0.0.0", 8)),
        ("::ffff:0:0/96", ("0.0.0.0", 0)),
        ("10.0.0.1/8", None),
        ("10.0.0.0/33", None),
        ("10.0.0.0/08", None),
        ("10.0.0.0/", None),
        ("10.0.0.0/-1", None),
        ("10.0.0.0/8.0", None),
        ("::/129", None),
        ("a/8", None),
        ("10.0.0.0/8/8", None),
        ("10.0.0.0/٣", None),
    ],
)
def test_networks(text: str, network: tuple[str, int] | None) -> None:
    assert parse_network(text) == network


def test_a_class_is_the_same_when_it_is_asked_for_again() -> None:
    addresses = [f"10.0.{number >> 8}.{number & 255}" for number in range(3000)] + ["8.8.8.8", "::1", "nonsense"]
    first = [classify(ip) for ip in addresses]
    assert [classify(ip) for ip in addresses] == first
    assert set(first[:3000]) == {"private"} and first[3000:] == ["global", "loopback", "malformed"]
