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

import pytest
from skep_policy import Closed, EgressEvent, Rules
from skep_proxy import Proxy
from skep_proxy.pipes import FREE_PIPES
from skep_proxy.testing import read_all, read_exactly, read_head, wait_until

from .conftest import Make, Serve, Setup, descriptors

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
    def __init__(self, address: tuple[str, int], port: int, patience: float) -> None:
        self.address = address
        self.port = port
        self.patience = patience
        self.wrong: list[str] = []

    def one(self, seed: int) -> None:
        dice = random.Random(seed)
        kind = dice.choice([self.tunnel, self.plain, self.socks, self.denied, self.killed, self.stalled, self.noise])
        try:
            with socket.create_connection(self.address, self.patience) as sock:
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
        # Not what begins like TLS and is none: that is cut, and some of many thousand would.
        data = b"x" + dice.randbytes(dice.randrange(1, 100_000)).replace(b"G", b"x")
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


def reload_without_end(proxy: Proxy, one: Rules, other: Rules, ended: threading.Event) -> int:
    """Rules are replaced again and again, until told to stop. Returns how often."""
    times = 0
    while not ended.wait(0.001):
        proxy.apply(replaced=[(one, other)])
        one, other = other, one
        times += 1
    return times


def sockets() -> int:
    return sum(name.startswith("socket:") for name in descriptors())


def soak(setup: Setup, serve: Serve, count: int, *, patience: float = 30) -> list[str]:
    """What is wrong after that many connections, rules being replaced under half of them: nothing, if all is well."""
    origin = serve(origin_of_everything)
    old = Rules.build(allow=[f"localhost:{origin.port}"])
    new = Rules.build(allow=[f"localhost:{origin.port}", "other.test"], deny=["bad.test"])
    setup.address = setup.proxy.listen_tcp("127.0.0.1", 0, old)
    clients = Clients(setup.address, origin.port, patience)
    run(clients, count // 4, 0)
    stats = setup.proxy.stats
    assert wait_until(lambda: stats().connections == 0)
    before, sockets_before, threads = len(descriptors()), sockets(), threading.active_count()
    setup.events.events.clear()
    gc.collect()
    tracemalloc.start()
    held = tracemalloc.get_traced_memory()[0]
    run(clients, count // 4, 1000)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        reloads = pool.submit(reload_without_end, setup.proxy, old, new, ended)
        run(clients, count // 2, 5000)
        ended.set()
        wrong = [*clients.wrong, *([] if reloads.result() > 10 else ["the rules were hardly replaced"])]
    if not wait_until(lambda: stats().connections == 0 and stats().tunnels == 0):
        wrong.append(f"connections that stay: {stats()}")
    if not wait_until(lambda: sockets() <= sockets_before, patience):
        wrong.append(f"{sockets() - sockets_before} sockets that stay")
    if len(descriptors()) > before + 2 * FREE_PIPES:
        wrong.append(f"{len(descriptors()) - before} descriptors that stay")
    if not wait_until(lambda: threading.active_count() <= threads, patience):
        wrong.append(f"threads that stay: {threading.enumerate()}")
    if any(host != "localhost" for host, _ in setup.events.allowed()):
        wrong.append("something else was allowed")
    if not wait_until(lambda: len(setup.events.allowed()) == len(setup.events.closed), patience):
        wrong.append(f"{len(setup.events.allowed())} beginnings and {len(setup.events.closed)} ends on record")
    setup.events.events.clear()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - held
    tracemalloc.stop()
    if grown > 2_000_000:
        wrong.append(f"{grown} bytes that stay")
    return wrong


def test_soak_leaves_nothing_and_decides_nothing_wrong(setup: Setup, serve: Serve) -> None:
    assert soak(setup, serve, SIZE) == []


@pytest.mark.parametrize("planted", ["sockets", "bytes", "threads", "allowed and refused", "ends on record"])
def test_soak_notices_what_is_planted(make: Make, serve: Serve, planted: str) -> None:
    """A little of it with each of the first connections that are on record."""
    kept: list[object] = []
    ended = threading.Event()
    refused = Rules.build(deny=["localhost"])

    def plant(event: EgressEvent) -> None:
        if isinstance(event, Closed):
            match planted:
                case "sockets" if len(kept) < 120:
                    kept.append(socket.socket())
                case "bytes" if len(kept) < 200:
                    kept.append(bytearray(50_000))
                case "threads" if len(kept) < 120:
                    kept.append(threading.Thread(target=ended.wait, daemon=True))
                    kept[-1].start()  # type: ignore[attr-defined]
                case "allowed and refused" if len(kept) < 60:
                    kept.append(None)
                    if len(kept) == 60:
                        for scope in setup.proxy._engine.scopes:  # pyright: ignore[reportPrivateUsage]
                            scope.rules = refused
                case "ends on record":
                    return
                case _:
                    pass
        setup.events(event)

    setup = make(on_event=plant)
    try:
        wrong = soak(setup, serve, 200, patience=1)
        assert any(planted in line for line in wrong), wrong
    finally:
        ended.set()
        for one in kept:
            if isinstance(one, socket.socket):
                one.close()
