"""Dialling an origin that does not answer in the same instant, as none beyond loopback does."""

from __future__ import annotations

import socket
import threading

from skep_proxy.testing import wait_until

from .conftest import Setup


def full_listener() -> tuple[socket.socket, list[socket.socket]]:
    """A listener whose queue is full: a dropped SYN is sent again a second later, and finds room."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers: list[socket.socket] = []
    for _ in range(8):
        filler = socket.socket()
        filler.settimeout(0.2)
        fillers.append(filler)
        try:
            filler.connect(listener.getsockname())
        except TimeoutError:
            return listener, fillers
    raise AssertionError("the queue never filled")


def test_a_connection_that_takes_its_time_becomes_a_tunnel(setup: Setup) -> None:
    listener, fillers = full_listener()
    port = listener.getsockname()[1]
    setup.listen(f"localhost:{port}")
    accepted: list[socket.socket] = []

    def serve() -> None:
        while True:
            sock = listener.accept()[0]
            accepted.append(sock)
            sock.settimeout(60)
            if data := sock.recv(100):
                sock.sendall(b"got " + data)
                return

    with listener:
        client = setup.connect(f"localhost:{port}", b"hello")
        wait_until(lambda: bool(setup.events.allowed()), 5)
        for filler in fillers:
            filler.close()
        server = threading.Thread(target=serve)
        server.start()
        answer = b""
        while not answer.endswith(b"got hello"):
            part = client.recv(1000)
            assert part, answer
            answer += part
        server.join(60)
    assert answer.startswith(b"HTTP/1.1 200 ")
    for sock in accepted:
        sock.close()
