"""The canonicaliser: one normal form per host, or none."""

from __future__ import annotations

import ipaddress
import socket
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skep_policy import MalformedHost, canonical_host, is_address, parse_target
from skep_policy.hosts import MAX_LABEL, MAX_NAME, format_ipv6, parse_ipv4, parse_ipv6

CANONICAL = [
    ("example.com", "example.com"),
    ("EXAMPLE.Com", "example.com"),
    ("example.com.", "example.com"),
    ("localhost", "localhost"),
    ("a_b._tcp.example.com", "a_b._tcp.example.com"),
    ("r3---sn-4g5e6nzl.example.com", "r3---sn-4g5e6nzl.example.com"),
    ("3com.example", "3com.example"),
    ("0xg.example", "0xg.example"),
    ("bücher.example", "xn--bcher-kva.example"),
    ("BÜCHER.example", "xn--bcher-kva.example"),
    ("bu\u0308cher.example", "xn--bcher-kva.example"),
    ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ("XN--BCHER-KVA.EXAMPLE", "xn--bcher-kva.example"),
    ("ｅｘａｍｐｌｅ.com", "example.com"),
    ("example。com", "example.com"),
    ("example．com｡", "example.com"),
    ("ﬃ.example", "ffi.example"),
    ("_dmarc.bücher.example", "_dmarc.xn--bcher-kva.example"),
    ("straße.example", "xn--strae-oqa.example"),
    ("a\u00adb.example", "ab.example"),
    ("127.0.0.1", "127.0.0.1"),
    ("127.0.0.1.", "127.0.0.1"),
    ("１２７.０.０.１", "127.0.0.1"),
    ("127。0。0。1", "127.0.0.1"),
    ("①②⑦.0.0.1", "127.0.0.1"),
    ("::1", "::1"),
    ("[::1]", "::1"),
    ("2001:DB8:0:0::0:1", "2001:db8::1"),
    ("::ffff:10.0.0.1", "10.0.0.1"),
    ("[::FFFF:a00:1]", "10.0.0.1"),
    ("a" * 63 + ".com", "a" * 63 + ".com"),
    (".".join(["a" * 49] * 5) + ".abc", ".".join(["a" * 49] * 5) + ".abc"),
]

MALFORMED = [
    *("", ".", "..", "a..b", ".a", "a.b..", "example.com\u3002\u3002"),
    *(
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.256",
        "1.2.3.4.5",
        "1.2.3",
        "0",
    ),
    *("example.1", "example.0x1f", "example.0x", "1.2.3.４５６", "１２７.１", "0Ⅹ7f.1", "２１３０７０６４３３"),
    *(
        "fe80::1%eth0",
        "[fe80::1%25eth0]",
        "::1%lo",
        "1::2::3",
        ":::",
        "[::1",
        "::1]",
        "[127.0.0.1]",
        "[]",
        "::ffff:1.2.3.04",
    ),
    *("user@example.com", "ok.com@evil.com", "ok.com%00.evil.com", "ok.com%2eevil.com", "％00.com", "＠.com"),
    *(
        "a b",
        " a",
        "a ",
        "a\t",
        "a\nb",
        "a\r\nX: y",
        "a\0.com",
        "\0",
        "a/b",
        "a\\b",
        "a?b",
        "a#b",
        "*.com",
        "a,b",
        "http://a",
    ),
    *("-a.com", "a-.com", "a.-b.com", "a" * 64 + ".com", ".".join(["a" * 50] * 5), "a:80", "a:b:c"),
    *("xn--", "xn--a", "xn--a-", "xn--bcher-kva-.example", "xn--example-", "xn--BCHER-kva1", "☃.example", "💩.la"),
    *("a\u200bb\u200d.com", "\ud800.com", "\u0300a.com", "a／b.com", "℀.com", "٣.٣.٣.٣", "a" * 2000, "é" * 2000),
]


@pytest.mark.parametrize(("text", "host"), CANONICAL)
def test_has_one_normal_form(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
def test_has_no_normal_form(text: str) -> None:
    with pytest.raises(MalformedHost):
        canonical_host(text)


@pytest.mark.parametrize(("text", "host"), [("db", False), ("a.b1", False), ("1.2.3.4", True), ("::1", True)])
def test_tells_addresses_from_names(text: str, host: bool) -> None:
    assert is_address(canonical_host(text)) is host


# Text that comes close to hosts: what hypothesis would take long to find by itself.
PLAIN = (*".:[]-_%@*/ \0\r\n", *string.ascii_lowercase[:6], *"XN019", "xn--", "0x", "127", "255", "256", "::", "ffff")
BEYOND = (*"éüß。．｡１７ａא٣①Kﬁ", "\u200d", "\u0301", "\u00ad", "bcher-kva")
PIECES = st.sampled_from((*PLAIN, *BEYOND))
NEAR_HOSTS = st.one_of(st.text(), st.lists(PIECES, max_size=14).map("".join))


@given(NEAR_HOSTS)
@example("a\u3002" * 200)
@example("xn--" + "a" * 59)
def test_any_text_has_a_valid_stable_form_or_is_malformed(text: str) -> None:
    """No other exception; a result is either a dotted quad, a compressed IPv6 address, or a valid lower-case name."""
    try:
        host = canonical_host(text)
    except MalformedHost:
        return
    assert host.isascii() and host == host.lower()
    assert canonical_host(host) == host
    if is_address(host):
        assert str(ipaddress.ip_address(host)) == host
        return
    assert len(host) <= MAX_NAME
    labels = host.split(".")
    assert all(1 <= len(label) <= MAX_LABEL and label[0] != "-" and label[-1] != "-" for label in labels)
    assert set(host) <= set(string.ascii_lowercase + string.digits + "-_.")
    with pytest.raises(OSError, match="illegal"):
        socket.inet_aton(host)  # the loosest reader of addresses there is does not take a name for one


@given(NEAR_HOSTS)
def test_spelling_does_not_matter(text: str) -> None:
    """Case and one trailing dot change nothing: neither the form nor whether there is one."""
    for other in (text.upper(), text.lower(), text + "." if text[-1:] not in (".", "") and ":" not in text else text):
        if other.casefold() != text.casefold() and other != text + ".":
            continue  # upper-casing changed more than case ("ß")
        if not text.isascii() or len(text) >= MAX_NAME:
            continue
        try:
            expected = canonical_host(text)
        except MalformedHost:
            with pytest.raises(MalformedHost):
                canonical_host(other)
        else:
            assert canonical_host(other) == expected


@given(st.text(alphabet=st.characters(min_codepoint=0x80), min_size=1, max_size=12))
def test_an_encoded_label_decodes_to_a_label_that_encodes_to_it(label: str) -> None:
    """The A-label form is a fixed point: whoever asks by the encoded name asks for the same host."""
    import idna

    try:
        host = canonical_host(label + ".example")
    except MalformedHost:
        return
    first = host.split(".")[0]
    if first.startswith("xn--"):
        assert canonical_host(idna.ulabel(first) + ".example") == host


@given(st.integers(0, 2**128 - 1))
def test_every_ipv6_number_is_written_one_way(number: int) -> None:
    text = format_ipv6(number)
    assert canonical_host(f"[{text}]" if ":" in text else text) == text
    exploded = ipaddress.IPv6Address(number).exploded
    assert canonical_host(exploded.upper()) == text


@given(st.text(alphabet="0123456789.", max_size=16))
def test_dotted_quads_are_read_as_the_standard_library_does(text: str) -> None:
    try:
        expected: int | None = int(ipaddress.IPv4Address(text))
    except ValueError:
        expected = None
    assert parse_ipv4(text) == expected


@given(st.text(alphabet="0123456789abcdef:.%", max_size=40))
def test_ipv6_is_read_as_the_standard_library_does_but_without_zones(text: str) -> None:
    try:
        expected: int | None = int(ipaddress.IPv6Address(text))
    except ValueError:
        expected = None
    assert parse_ipv6(text) == (None if "%" in text else expected)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.com", ("a.com", 443, False)),
        ("A.com.:8080", ("a.com", 8080, False)),
        ("[::1]:22", ("::1", 22, True)),
        ("[::1]", ("::1", 443, True)),
        ("::1", ("::1", 443, True)),
        ("127.0.0.1:1", ("127.0.0.1", 1, True)),
        ("bücher.example:65535", ("xn--bcher-kva.example", 65535, False)),
    ],
)
def test_target_is_a_host_and_a_port(text: str, target: tuple[str, int, bool]) -> None:
    found = parse_target(text)
    assert (found.host, found.port, found.address) == target


@pytest.mark.parametrize(
    "text",
    [
        *("a.com:", "a.com:0", "a.com:65536", "a.com:080", "a.com:8x", "a.com:-1", "a.com:+1", "a.com: 1", "a.com:1 "),
        *(
            "a.com:٣",
            "a.com:²",
            "[::1]:",
            "[::1]x",
            "[::1]:x",
            "[a.com]:1",
            "[::1]]:1",
            ":80",
            "",
            "[::1]:1:2",
            "a:b:1",
        ),
    ],
    ids=ascii,
)
def test_target_with_a_bad_port_or_bracket_is_malformed(text: str) -> None:
    with pytest.raises(MalformedHost):
        parse_target(text)


def test_default_port_is_the_callers() -> None:
    assert parse_target("a.com", default_port=80).port == 80


@given(NEAR_HOSTS)
def test_no_text_breaks_a_target(text: str) -> None:
    try:
        target = parse_target(text)
    except MalformedHost:
        return
    assert canonical_host(target.host) == target.host and 0 < target.port < 65536


def test_plain_ascii_names_do_not_import_idna() -> None:
    """The tables of IDNA are 2 ms and 300 KiB; most programs never see a name that needs them."""
    import subprocess
    import sys

    code = "import sys, skep_policy.hosts as h; h.canonical_host('a.example'); sys.exit('idna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_needs_idna_is_malformed_when_it_cannot_be_loaded() -> None:
    import subprocess
    import sys

    code = """
import os, resource, sys
import skep_policy.hosts as h
if len(sys.argv) > 1:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    print(h.canonical_host("b\\xfccher.example"))
except h.MalformedHost as error:
    print("malformed:", error)
"""

    def said(*more: str) -> str:
        return subprocess.run([sys.executable, "-c", code, *more], check=True, capture_output=True, text=True).stdout

    assert said() == "xn--bcher-kva.example\n"
    assert said("none left").startswith("malformed: cannot be judged by IDNA at the moment")
