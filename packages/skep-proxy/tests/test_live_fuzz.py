"""Whatever a client sends to a running proxy."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skep_policy import Rules
from skep_proxy import Limits, Proxy
from skep_proxy.testing import Origin, Recorder, wait_until

from .conftest import descriptors

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
    def __init__(self) -> None:
        self.origin = Origin()
        self.events = Recorder()
        self.proxy = Proxy(on_event=self.events, limits=Limits(handshake=0.5, linger=0.5, keep_alive=0.5, head=4096))
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
    before = len(descriptors())
    live = Live()
    yield live
    live.close()
    assert wait_until(lambda: len(descriptors()) <= before)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES | st.binary(max_size=40), max_size=8), st.booleans())
def test_any_conversation_ends_without_a_fault_and_nothing_denied_gets_through(
    live: Live, pieces: list[bytes], half_close: bool
) -> None:
    """The engine never faults, every connection is let go of, and only the one allowed target is ever reached."""
    with socket.create_connection(live.address, 10) as client:
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
