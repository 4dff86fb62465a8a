"""Whatever a client sends to a running proxy."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skep_policy import Rules
from skep_proxy import Limits, Proxy
from skep_proxy.handoff import parse_offer
from skep_proxy.passing import MAGIC, Refused
from skep_proxy.testing import Origin, Recorder, wait_until

from .conftest import descriptors
from .test_tls import openssl_hello

PIECES = st.sampled_from(
    [
        *(
            b"GET http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET http://bad.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ),
        *(b"POST http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", b"hello", b"hel"),
        *(
            b"POST http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
        ),
        *(b"CONNECT localhost:PORT HTTP/1.1\r\n\r\n", b"CONNECT bad.test:443 HTTP/1.1\r\n\r\n", b"\x05\x01\x00"),
        *(b"\x05\x01\x00\x03\x09localhostPP", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", b"\r\n", b"\0", b"x" * 3000),
        *(
            b"GET http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            b"HTTP/1.0\r\n",
        ),
    ]
)


class Live:
    def __init__(self, limits: Limits) -> None:
        self.origin = Origin()
        self.events = Recorder()
        self.proxy = Proxy(on_event=self.events, limits=limits)
        self.address = self.proxy.listen_tcp("127.0.0.1", 0, Rules.build(allow=[f"localhost:{self.origin.port}"]))

    def fill(self, piece: bytes) -> bytes:
        port = self.origin.port
        return piece.replace(b"PORT", str(port).encode()).replace(b"PP", port.to_bytes(2, "big"))

    def close(self) -> None:
        self.proxy.close()
        self.origin.close()


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """One proxy serves every example and keeps its pipes; `live` looks at the end."""


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    yield from living(Limits(handshake=0.5, linger=0.5, keep_alive=0.5, head=4096))


@pytest.fixture(scope="module")
def patient() -> Iterator[Live]:
    """No time runs out while a busy machine is at something else, which would be decided in another way."""
    yield from living(Limits())


def living(limits: Limits) -> Iterator[Live]:
    before = len(descriptors())
    live = Live(limits)
    yield live
    live.close()
    assert wait_until(lambda: len(descriptors()) <= before)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES | st.binary(max_size=40), max_size=8), st.booleans())
def test_any_conversation_ends_without_a_fault_and_nothing_denied_gets_through(
    live: Live, pieces: list[bytes], half_close: bool
) -> None:
    """The engine never faults, every connection is let go of, and only the one allowed target is ever reached."""
    with socket.create_connection(live.address, 60) as client:
        client.settimeout(0.02)
        try:
            for piece in pieces:
                client.sendall(live.fill(piece))
            if half_close:
                client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except OSError:
            pass
    assert wait_until(lambda: live.proxy.stats().connections == 0)
    assert live.proxy.stats().faults == 0
    assert set(live.events.allowed()) <= {("localhost", live.origin.port)}


HELLO = openssl_hello("localhost")
CONVERSATIONS = {
    "tunnel": b"CONNECT localhost:PORT HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n",
    "denied tunnel": b"CONNECT bad.test:443 HTTP/1.1\r\n\r\n" + HELLO,
    "tls in a tunnel": b"CONNECT localhost:PORT HTTP/1.1\r\n\r\n" + HELLO + b"behind it",
    "another name in a tunnel": b"CONNECT localhost:PORT HTTP/1.1\r\n\r\n" + openssl_hello("bad.test"),
    "requests sent ahead": b"GET http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\n\r\n" * 2
    + b"GET http://bad.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunked body": b"POST http://localhost:PORT/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n0\r\n\r\n",
    "socks": b"\x05\x02\x02\x00\x05\x01\x00\x03\x09localhostPPGET / HTTP/1.0\r\n\r\n",
    "denied socks": b"\x05\x01\x00\x05\x01\x00\x03\x08bad.test\x01\xbbmore",
}


def conversation(live: Live, data: bytes, cuts: list[int]) -> tuple[list[object], list[object]]:
    """What was decided for bytes that arrive in these pieces."""
    live.events.events.clear()
    with socket.create_connection(live.address, 60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            try:
                client.sendall(data[start:end])
            except OSError:
                break  # cut
            if len(cuts) < 20:
                wait_until(lambda: False, 0.001)
        try:
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass
        except OSError:
            pass
    assert wait_until(lambda: live.proxy.stats().connections == 0)
    assert live.proxy.stats().faults == 0
    return list(live.events.allowed()), list(live.events.denied())


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_decided_in_the_same_way_byte_by_byte(patient: Live, name: str) -> None:
    data = patient.fill(CONVERSATIONS[name])
    whole = conversation(patient, data, [])
    assert whole != ([], [])
    assert conversation(patient, data, list(range(1, len(data)))) == whole


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(CONVERSATIONS)), st.data())
def test_a_conversation_is_decided_in_the_same_way_however_it_is_cut_up(
    patient: Live, name: str, data: st.DataObject
) -> None:
    """Bytes that come while something else is waited for (a lookup, a dial, an answer) are neither lost nor read
    twice.
    """
    stream = patient.fill(CONVERSATIONS[name])
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=6)))
    assert conversation(patient, stream, cuts) == conversation(patient, stream, [])


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda noise: b'{"listen": [' + noise))
def test_whatever_is_offered_is_an_offer_or_refused(noise: bytes) -> None:
    try:
        parse_offer(MAGIC + noise)
    except Refused:
        pass
