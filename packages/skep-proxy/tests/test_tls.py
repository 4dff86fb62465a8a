"""The server name of a ClientHello: real hellos of OpenSSL, made ones, and noise."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import Verdict
from skep_proxy.flow import Cut
from skep_proxy.tls import HelloReader, MalformedHello, SniGate, server_name


def openssl_hello(name: str | None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def body_of(data: bytes) -> bytes:
    body = HelloReader().feed(data)
    assert body is not None
    return body


def records(message: bytes, size: int) -> bytes:
    """A handshake message over records of at most `size` bytes."""
    parts = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def gate(allowed: str = "") -> SniGate:
    return SniGate("good.test", lambda name: Verdict(name == allowed, "allowed" if name == allowed else "not-listed"))


def test_openssl_hello_names_its_host() -> None:
    assert server_name(body_of(openssl_hello("good.test"))) == "good.test"
    assert server_name(body_of(openssl_hello(None))) is None


@pytest.mark.parametrize("size", [1, 3, 7, 100, 16384])
@pytest.mark.parametrize("step", [1, 5, 1000])
def test_any_fragmentation_gives_the_same_name_and_the_same_bytes(size: int, step: int) -> None:
    data = records(openssl_hello("good.test")[5:], size) + b"\x17\x03\x03more"
    passing = gate()
    out = b""
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        out += passing.feed(piece) if passing.state == "more" else piece
    assert passing.state == "open" and out == data


def test_another_host_is_cut_unless_the_rules_allow_it() -> None:
    data = openssl_hello("other.test")
    with pytest.raises(Cut) as caught:
        gate().feed(data)
    assert (caught.value.verdict.reason, caught.value.host) == ("sni-mismatch", "other.test")
    assert gate("other.test").feed(data) == data


def test_spelling_of_the_name_does_not_matter() -> None:
    assert gate().feed(openssl_hello("GOOD.test")) != b""


def test_hello_without_a_name_passes() -> None:
    data = openssl_hello(None)
    assert gate().feed(data) == data


@pytest.mark.parametrize(
    "data",
    [b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\n", b"\x16\x12\x01\x00", b"\x18\x03\x01\x00", b"\0", b"\x80\x2e\x01\x03\x01"],
)
def test_what_is_not_tls_passes_at_once(data: bytes) -> None:
    assert gate().feed(data) == data


def test_one_byte_that_could_become_tls_is_kept_back_until_it_does_not() -> None:
    passing = gate()
    assert passing.feed(b"\x16") == b""
    assert passing.feed(b"x") == b"\x16x"
    ending = gate()
    ending.feed(b"\x16")
    assert ending.end() == b"\x16"


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        records(b"\x01\x00\x00\x05abcde", 100),
        records(b"\x01\x00\x00\x09abcde", 5) + b"\x15\x03\x01\x00\x02\x02\x28",
    ],
    ids=["empty record", "huge record", "server hello", "huge hello", "empty hello", "short hello", "alert inside"],
)
def test_malformed_hello_is_cut(data: bytes) -> None:
    with pytest.raises(Cut) as caught:
        gate().feed(data)
    assert caught.value.verdict.reason == "malformed"


@pytest.mark.parametrize("name", [b"a b", b"good.test\0", b"127.1", b"", b"\xff.test"])
def test_name_that_is_no_host_is_cut(name: bytes) -> None:
    with pytest.raises(Cut):
        gate("*").feed(hello_with(b"\0\0" + vector(vector(b"\0" + vector(name, 2), 2), 2)))


@pytest.mark.parametrize(
    "before", [b"\x15\x03\x01\x00\x02\x01\x5a", b"\x14\x03\x03\x00\x01\x01", b"\x15\x00\x00\x00\x02\x01\x00"]
)
def test_a_hello_behind_what_servers_skip_is_cut(before: bytes) -> None:
    for data in (before + openssl_hello("evil.example"), before):
        with pytest.raises(Cut):
            gate().feed(data)


@pytest.mark.parametrize("version", [b"\x00\x00", b"\x02\x00", b"\x04\x01", b"\x0f\xff"])
def test_a_hello_in_a_record_of_any_version_a_server_takes_is_cut(version: bytes) -> None:
    with pytest.raises(Cut):
        gate().feed(b"\x16" + version + openssl_hello("evil.example")[3:])
    assert gate().feed(b"\x16\x10\x00 is no TLS") == b"\x16\x10\x00 is no TLS"


def test_two_names_are_malformed() -> None:
    one = b"\0\0" + vector(vector(b"\0" + vector(b"good.test", 2), 2), 2)
    assert gate().feed(hello_with(one)) != b""
    with pytest.raises(Cut):
        gate().feed(hello_with(one + one))
    both = b"\0" + vector(b"good.test", 2) + b"\0" + vector(b"evil.test", 2)
    with pytest.raises(Cut):
        gate().feed(hello_with(b"\0\0" + vector(vector(both, 2), 2)))


def test_hello_that_never_ends_is_cut_at_the_limit() -> None:
    endless = b"\x01\x00\xff\xff"
    passing = SniGate("good.test", lambda _: Verdict(False, "not-listed"), limit=1000)
    for byte in (endless + bytes(2000))[:166]:
        passing.feed(records(bytes((byte,)), 1))
    with pytest.raises(Cut):
        passing.feed(records(b"\0", 1))


def vector(data: bytes, octets: int) -> bytes:
    return len(data).to_bytes(octets, "big") + data


def hello_with(extensions: bytes) -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(b"", 1) + vector(b"\x13\x01", 2) + vector(b"\0", 1) + vector(extensions, 2)
    return records(b"\x01" + vector(body, 3), 16384)


@given(st.binary(max_size=400), st.integers(0, 600))
def test_noise_passes_waits_or_is_cut(noise: bytes, at: int) -> None:
    """Whatever a hello is damaged with, the gate opens, waits or cuts, and what it lets through is what came."""
    data = openssl_hello("good.test")
    damaged = data[:at] + noise + data[at + len(noise) :]
    for start in (damaged, b"\x16\x03\x01" + noise):
        passing = gate()
        try:
            out = passing.feed(start) if start else b""
        except Cut:
            continue
        assert out in (b"", start)


@given(st.binary(max_size=300))
def test_noise_has_no_server_name(noise: bytes) -> None:
    try:
        server_name(noise)
    except MalformedHello:
        pass
