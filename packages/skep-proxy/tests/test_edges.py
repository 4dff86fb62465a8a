"""Nothing is left behind in a socket, whatever a read or a splice of it stopped at.

The engine is told of a change once. Here it is held up while bytes are put before it, so that what it finds is the same
on every machine: small packets that fill a pipe, an end right behind the bytes, bytes that descriptors came with.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from skep_policy import Rules
from skep_proxy.flow import COPY, SMALL
from skep_proxy.testing import read_all, read_exactly

from .conftest import Serve, Setup

PATIENCE = 60
GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@contextmanager
def held_up(setup: Setup) -> Generator[None]:
    """The engine does nothing inside the block."""
    holding, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        holding.set()
        go_on.wait(PATIENCE)

    assert setup.proxy._engine.loop.submit(hold)  # pyright: ignore[reportPrivateUsage]
    assert holding.wait(PATIENCE)
    try:
        yield
    finally:
        go_on.set()


class Ends:
    """A tunnel that stands, as its two users have it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        for sock in (client, server):
            sock.settimeout(PATIENCE)
        if client.family == socket.AF_INET:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


Open = Callable[..., Ends]


@pytest.fixture(params=["tcp", "unix"])
def open_tunnel(setup: Setup, serve: Serve, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """`open_tunnel(early)` has sent `early` along with its CONNECT, and the engine was held up meanwhile."""
    accepted: list[socket.socket] = []
    ready, over = threading.Semaphore(0), threading.Event()

    def handler(sock: socket.socket) -> None:
        accepted.append(sock)
        ready.release()
        over.wait(PATIENCE)

    rules = Rules.build(allow=[f"localhost:{serve(handler).port}"])
    target = rules.allow[0].text
    stack = ExitStack()

    def make(*early: bytes) -> Ends:
        if request.param == "tcp":
            client = socket.create_connection(setup.proxy.listen_tcp("127.0.0.1", 0, rules), PATIENCE)
        else:
            setup.proxy.listen_unix(tmp_path / "s", rules)
            client = socket.socket(socket.AF_UNIX)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # each packet counts as some kilobytes
            client.settimeout(PATIENCE)
            client.connect(str(tmp_path / "s"))
        stack.enter_context(client)
        with held_up(setup):
            client.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            for part in early:
                client.sendall(part)
        assert ready.acquire(timeout=PATIENCE)
        assert read_exactly(client, len(GRANTED)) == GRANTED
        return Ends(client, accepted[-1])

    yield make
    over.set()
    stack.close()


def one_by_one(sock: socket.socket, data: bytes) -> None:
    for at in range(len(data)):
        sock.sendall(data[at : at + 1])


BULK = bytes(range(256)) * (4 * COPY // 256)
FEW = b"some few"
PACKETS = bytes(range(70))
"""More of them than a pipe has places, where each takes one; and no more than a Unix socket holds."""

SENDS: dict[str, Callable[[socket.socket], bytes]] = {}


def sends(send: Callable[[socket.socket], bytes]) -> Callable[[socket.socket], bytes]:
    """Puts bytes into a socket, and returns them."""
    SENDS[send.__name__] = send
    return send


@sends
def few(sock: socket.socket) -> bytes:
    sock.sendall(FEW)
    return FEW


@sends
def packets_of_one_byte(sock: socket.socket) -> bytes:
    one_by_one(sock, PACKETS)
    return PACKETS


@sends
def as_many_as_one_read(sock: socket.socket) -> bytes:
    sock.sendall(BULK[:SMALL])
    return BULK[:SMALL]


@sends
def one_more_than_one_read(sock: socket.socket) -> bytes:
    sock.sendall(BULK[: SMALL + 1])
    return BULK[: SMALL + 1]


@sends
def bulk_and_packets_of_one_byte(sock: socket.socket) -> bytes:
    sock.sendall(BULK[:SMALL])
    one_by_one(sock, PACKETS)
    return BULK[:SMALL] + PACKETS


@pytest.mark.parametrize("end", [False, True], ids=["stays open", "ends right behind"])
@pytest.mark.parametrize("send", SENDS.values(), ids=list(SENDS))
@pytest.mark.parametrize("way", ["up", "down", "both"])
def test_what_came_while_the_engine_was_busy_is_passed_on(
    setup: Setup, open_tunnel: Open, way: str, send: Callable[[socket.socket], bytes], end: bool
) -> None:
    ends = open_tunnel()
    ways = {"up": (ends.client, ends.server), "down": (ends.server, ends.client)}
    chosen = list(ways.values()) if way == "both" else [ways[way]]
    for _ in range(2):  # a second time, when the flow has learned what to expect
        with held_up(setup):
            sent = [send(source) for source, _ in chosen]
        for (_, sink), data in zip(chosen, sent, strict=True):
            assert read_exactly(sink, len(data)) == data
    with held_up(setup):
        sent = [send(source) for source, _ in chosen]
        for source, _ in chosen if end else ():
            source.shutdown(socket.SHUT_WR)
    for (_, sink), data in zip(chosen, sent, strict=True):
        assert (read_all(sink) if end else read_exactly(sink, len(data))) == data


@pytest.mark.parametrize("size", [0, 1, COPY - 100, COPY, 3 * COPY])
def test_bytes_that_came_with_connect_are_passed_on_and_so_are_those_behind(
    setup: Setup, open_tunnel: Open, size: int
) -> None:
    ends = open_tunnel(BULK[:size]) if size <= COPY else open_tunnel()
    if size > COPY:  # more than a socket takes while nobody reads it
        threading.Thread(target=ends.client.sendall, args=(BULK[:size],)).start()
    assert read_exactly(ends.server, size) == BULK[:size]
    ends.client.sendall(FEW)
    assert read_exactly(ends.server, len(FEW)) == FEW


def test_a_hello_that_comes_with_connect_in_two_parts_is_judged_and_passed_on(setup: Setup, open_tunnel: Open) -> None:
    """What has been kept back until it is whole was read from the socket, and is not reported again."""
    hello = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03" + bytes(32) + b"\x00\x00\x02\x13\x01\x01\x00\x00\x00"
    ends = open_tunnel(hello[:3])
    with held_up(setup):
        ends.client.sendall(hello[3:])
        ends.client.sendall(FEW)
    assert read_exactly(ends.server, len(hello) + len(FEW)) == hello + FEW


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("end", [False, True], ids=["stays open", "ends right behind"])
def test_what_waited_for_a_sink_goes_on_once_that_reads(setup: Setup, open_tunnel: Open, way: str, end: bool) -> None:
    ends = open_tunnel()
    source, sink = (ends.client, ends.server) if way == "up" else (ends.server, ends.client)
    source.setblocking(False)
    sent = 0
    try:
        while True:
            sent += source.send(BULK)
    except BlockingIOError:
        pass
    source.settimeout(PATIENCE)
    with held_up(setup):
        took = read_exactly(sink, 2 * COPY)  # the sink can be written to, and is reported so, with what follows
        rest = threading.Thread(target=send_and_end, args=(source, FEW, end))
        rest.start()
    took += read_exactly(sink, sent - len(took) + len(FEW))
    rest.join()
    whole = BULK * (sent // len(BULK) + 1)
    assert len(took) == sent + len(FEW) and took.endswith(FEW)
    assert end is False or read_all(sink) == b""
    assert whole[: 2 * COPY] == took[: 2 * COPY]


def send_and_end(sock: socket.socket, data: bytes, end: bool) -> None:
    sock.sendall(data)
    if end:
        sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("when", ["with the request", "in the tunnel"])
def test_what_follows_bytes_that_descriptors_came_with_is_not_left_behind(
    setup: Setup, serve: Serve, tmp_path: Path, when: str
) -> None:
    """A read of a Unix socket ends there: a short one is no sign that there is no more."""
    port = serve(lambda sock: sock.sendall(read_exactly(sock, 12))).port
    setup.proxy.listen_unix(tmp_path / "s", Rules.build(allow=[f"localhost:{port}"]))
    ask = f"CONNECT localhost:{port} HTTP/1.1\r\n\r\n".encode()
    with socket.socket(socket.AF_UNIX) as client, open(os.devnull) as null:
        client.settimeout(PATIENCE)
        client.connect(str(tmp_path / "s"))
        if when == "in the tunnel":
            client.sendall(ask)
            assert read_exactly(client, len(GRANTED)) == GRANTED
        with held_up(setup):
            first = b"before" if when == "in the tunnel" else ask[:10]
            socket.send_fds(client, [first], [null.fileno()])
            client.sendall(b"behind" if when == "in the tunnel" else ask[10:] + b"beforebehind")
        if when == "with the request":
            assert read_exactly(client, len(GRANTED)) == GRANTED
        assert read_exactly(client, 12) == b"beforebehind"
