"""Many connections of every kind, with clients that are killed, stall or half-close; nothing is left afterwards.

SKEP_SOAK is the number of connections (default 400); 20000 is the long run.
"""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

from skep_policy import Rules
from skep_proxy.flow import FREE_PIPES
from skep_proxy.testing import read_all, read_exactly, read_head, wait_until

from .conftest import Serve, Setup, descriptors

SIZE = int(os.environ.get("SKEP_SOAK", "400"))
BODY = os.urandom(200_000)


def origin_of_everything(sock: socket.socket) -> None:
    """Answers HTTP with a large body, and echoes whatever else comes."""
    while head := read_head(sock) if (first := sock.recv(1, socket.MSG_PEEK)) == b"G" else first:
        if head.startswith(b"G"):
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        else:
            while data := sock.recv(65536):
                sock.sendall(data)
            return


def die(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Clients:
    def __init__(self, address: tuple[str, int], port: int) -> None:
        self.address = address
        self.port = port
        self.wrong: list[str] = []

    def one(self, seed: int) -> None:
        dice = random.Random(seed)
        kind = dice.choice([self.tunnel, self.plain, self.socks, self.denied, self.killed, self.stalled, self.noise])
        try:
            with socket.create_connection(self.address, 30) as sock:
                kind(sock, dice)
        except Exception as error:  # every failure of a client is a finding
            self.wrong.append(f"{kind.__name__}: {error!r}")

    def request(self, host: str = "localhost") -> bytes:
        return f"GET http://{host}:{self.port}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    def opened(self, sock: socket.socket) -> None:
        sock.sendall(f"CONNECT localhost:{self.port} HTTP/1.1\r\n\r\n".encode())
        assert read_head(sock).startswith(b"HTTP/1.1 200 "), "allowed and refused"

    def tunnel(self, sock: socket.socket, dice: random.Random) -> None:
        self.opened(sock)
        data = dice.randbytes(dice.randrange(1, 100_000)).replace(b"G", b"x")
        sender = threading.Thread(target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR)))
        sender.start()
        assert read_all(sock) == data, "a tunnel that changed bytes"
        sender.join()

    def plain(self, sock: socket.socket, dice: random.Random) -> None:
        for _ in range(dice.randrange(1, 4)):
            sock.sendall(self.request())
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            assert read_exactly(sock, len(BODY)) == BODY, "a body that changed"

    def socks(self, sock: socket.socket, dice: random.Random) -> None:
        sock.sendall(b"\x05\x01\x00\x05\x01\x00\x03\x09localhost" + self.port.to_bytes(2, "big") + b"hello")
        assert read_exactly(sock, 17)[12:] == b"hello"

    def denied(self, sock: socket.socket, dice: random.Random) -> None:
        sock.sendall(dice.choice([self.request("bad.test"), b"CONNECT bad.test:443 HTTP/1.1\r\n\r\n"]))
        assert read_head(sock).startswith(b"HTTP/1.1 403 "), "denied and let through"

    def killed(self, sock: socket.socket, dice: random.Random) -> None:
        if dice.random() < 0.5:
            self.opened(sock)
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        else:
            sock.sendall(self.request())
        read_exactly(sock, dice.randrange(0, 50_000))
        die(sock)

    def stalled(self, sock: socket.socket, dice: random.Random) -> None:
        self.opened(sock)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 3)
        threading.Event().wait(0.05)

    def noise(self, sock: socket.socket, dice: random.Random) -> None:
        data = dice.choice([b"\x05", b"CONN", b"\x16\x03\x01", dice.randbytes(100) + b"\r\n\r\n", self.request()[:-4]])
        sock.sendall(data)
        if dice.random() < 0.5:
            die(sock)


def run(clients: Clients, count: int, seed: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(clients.one, range(seed, seed + count)))


def test_soak_leaves_nothing_and_decides_nothing_wrong(setup: Setup, serve: Serve) -> None:
    origin = serve(origin_of_everything)
    old = Rules.build(allow=[f"localhost:{origin.port}"])
    new = Rules.build(allow=[f"localhost:{origin.port}", "other.test"], deny=["bad.test"])
    setup.address = setup.proxy.listen_tcp("127.0.0.1", 0, old)
    clients = Clients(setup.address, origin.port)
    run(clients, SIZE // 4, 0)
    assert wait_until(lambda: setup.proxy.stats().connections == 0)
    before = len(descriptors())
    setup.events.events.clear()
    gc.collect()
    tracemalloc.start()
    held = tracemalloc.get_traced_memory()[0]
    run(clients, SIZE // 2, 1000)
    setup.proxy.replace_rules(old, new)
    run(clients, SIZE // 4, 5000)
    assert clients.wrong == []
    assert wait_until(lambda: setup.proxy.stats().connections == 0 and setup.proxy.stats().tunnels == 0)
    assert wait_until(lambda: len(descriptors()) <= before + 2 * FREE_PIPES), descriptors()
    assert all(host == "localhost" for host, _ in setup.events.allowed())
    assert len(setup.events.allowed()) == len(setup.events.closed)
    setup.events.events.clear()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    assert grown < 2_000_000
