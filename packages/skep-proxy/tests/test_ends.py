"""What is left and what is told when things end at an odd moment: while dialling, closing or being changed."""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from skep_policy import Rules
from skep_proxy import Limits, Proxy, acceptor
from skep_proxy.acceptor import Acceptor
from skep_proxy.engine import Engine
from skep_proxy.flow import Flow
from skep_proxy.loop import Loop
from skep_proxy.relay import Relay
from skep_proxy.resolver import SHARE, THREADS
from skep_proxy.server import open_tcp
from skep_proxy.session import Session
from skep_proxy.testing import Origin, read_all, read_head, wait_until

from .conftest import Make, Serve, Setup
from .test_connect import echo
from .test_dial import full_listener


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def silent(stack: ExitStack) -> int:
    """A port of loopback at which a connection stays on its way."""
    listener, fillers = full_listener()
    for sock in (listener, *fillers):
        stack.enter_context(sock)
    return listener.getsockname()[1]


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["the client", "the proxy"])
def test_an_end_during_the_dial_is_on_record(setup: Setup, silent: int, how: str) -> None:
    setup.listen(f"localhost:{silent}")
    client = setup.connect(f"localhost:{silent}")
    assert setup.events.wait(lambda events: bool(events.allowed()))
    assert setup.events.closed == []
    if how == "the client":
        reset(client)
    else:
        setup.proxy.close()
    assert setup.events.wait(lambda events: [event.error for event in events.closed] == ["closed"])
    assert wait_until(lambda: setup.proxy.stats().connections == 0)


def test_a_client_that_only_stopped_sending_still_gets_its_tunnel(setup: Setup, serve: Serve) -> None:
    """The twin: half a close during the dial is no end."""
    origin = serve(lambda sock: sock.sendall(b"got " + read_all(sock)))
    answer = threading.Event()

    def resolve(host: str, port: int) -> list[str]:
        answer.wait(60)
        return ["127.0.0.1"]

    setup.proxy._engine.resolver._resolve = resolve  # pyright: ignore[reportPrivateUsage]
    setup.listen(f"slow.test:{origin.port}")
    client = setup.connect(f"slow.test:{origin.port}", b"all of it")
    client.shutdown(socket.SHUT_WR)
    answer.set()
    assert read_all(client).endswith(b"got all of it")


def test_a_tunnel_that_has_ended_leaves_nothing_for_the_garbage_collector(setup: Setup, origin: Origin) -> None:
    """A proxy under load would spend its time there, and hold what is over until then."""

    def parts() -> int:
        return sum(isinstance(found, (Session, Relay, Flow)) for found in gc.get_objects())

    setup.listen(f"localhost:{origin.port}")
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            tunnel = setup.tunnel(f"localhost:{origin.port}")
            assert parts() >= 4
            tunnel.close()
            assert wait_until(lambda: setup.proxy.stats().connections == 0)
        assert parts() <= 4  # the loop's last call
    finally:
        gc.enable()


def test_a_port_is_not_the_proxys_own_once_its_listener_is_closed(make: Make, stack: ExitStack) -> None:
    setup = make()
    gone = Rules.build()
    _, port = setup.proxy.listen_tcp("127.0.0.1", 0, gone)
    setup.listen(f"localhost:{port}")

    def get() -> bytes:
        return read_all(setup.client(f"GET http://localhost:{port}/ HTTP/1.0\r\n\r\n".encode()))

    assert b" 403 " in get(), "the proxy does not dial itself"
    assert setup.proxy.close_listeners(gone) == 1
    server = stack.enter_context(socket.create_server(("127.0.0.1", port)))

    def serve() -> None:
        with server.accept()[0] as sock:
            read_head(sock)
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nsomebody else")

    thread = threading.Thread(target=serve)
    thread.start()
    assert get().endswith(b"somebody else")
    thread.join()


def test_closing_the_same_listeners_from_many_threads_closes_each_once(make: Make) -> None:
    setup = make()
    rules = Rules.build()
    for _ in range(20):
        setup.proxy.listen_tcp("127.0.0.1", 0, rules)
    start = threading.Barrier(8)
    closed: list[int] = []

    def close() -> None:
        start.wait()
        closed.append(setup.proxy.close_listeners(rules))

    threads = [threading.Thread(target=close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(closed) == [0] * 7 + [20]


def test_what_comes_after_the_end_is_refused_and_nothing_of_it_stays(stack: ExitStack) -> None:
    """`nothing_leaks` looks for the descriptors."""
    proxy = Proxy()
    ours, theirs = socket.socketpair()
    stack.enter_context(theirs)
    proxy.close()
    for late in (
        lambda: proxy.adopt(ours, Rules.build()),
        lambda: proxy.connect(Rules.build()),
        lambda: proxy.listen_tcp("127.0.0.1", 0, Rules.build()),
        lambda: proxy.replace_rules(Rules.build(), Rules.build()),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            late()
    assert ours.fileno() == -1
    assert theirs.recv(1) == b""
    proxy.stop_accepting()
    assert proxy.drain(60)
    proxy.close()


def test_a_change_of_which_one_listener_cannot_be_served_changes_nothing(setup: Setup, origin: Origin) -> None:
    target = f"localhost:{origin.port}"
    setup.listen(target)
    first = Rules.build(allow=[target])
    address = setup.proxy.listen_tcp("127.0.0.1", 0, first)
    fine, broken = (open_tcp("127.0.0.1", 0, Rules.build(allow=[target])) for _ in range(2))
    new = fine.sock.getsockname()
    broken.sock.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        setup.proxy.apply(opened=[fine, broken], dropped=[first], replaced=[(first, Rules.build())])
    assert fine.sock.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(new, 60)
    for host, port in (setup.address, address):
        with socket.create_connection((host, port), 60) as client:
            client.sendall(f"GET http://{target}/ HTTP/1.0\r\n\r\n".encode())
            assert b"origin ok" in read_all(client)


@pytest.mark.parametrize("kind", ["proxy", "tcp", "dns"])
def test_a_closed_proxy_closes_what_it_is_given(stack: ExitStack, kind: Any) -> None:
    proxy = Proxy()
    proxy.close()
    sock = stack.enter_context(
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "dns" else socket.SOCK_STREAM)
    )
    sock.bind(("127.0.0.1", 0))
    with pytest.raises(RuntimeError, match="closed"):
        proxy.listen_on(sock, Rules.build(), kind)
    assert sock.fileno() == -1


def test_what_comes_during_the_end_is_served_or_refused_and_nothing_of_it_stays() -> None:
    for _ in range(20):
        proxy = Proxy()
        ends: list[socket.socket] = []
        started = threading.Event()

        def connect(proxy: Proxy = proxy, ends: list[socket.socket] = ends, started: threading.Event = started) -> None:
            try:
                while True:
                    ends.append(proxy.connect(Rules.build()))
                    started.set()
            except RuntimeError:
                pass

        thread = threading.Thread(target=connect)
        thread.start()
        assert started.wait(60)
        proxy.close()
        thread.join(60)
        assert not thread.is_alive()
        for end in ends:
            end.settimeout(60)
            assert end.recv(1) == b"", "its other end is closed"
            end.close()


class Stuck(socket.socket):
    """A listener whose `accept` another holder has made block."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def accept(self) -> tuple[socket.socket, object]:
        self.entered.set()
        assert self.release.wait(60)
        raise BlockingIOError(errno.EAGAIN, "nobody there")


def test_a_listener_that_blocks_does_not_hold_up_who_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "JOIN", 60)
    engine = Engine(on_event=None, limits=Limits())
    with Stuck() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        accepting = Acceptor(engine, engine.scope(Rules.build()), [(listener, False)])
        with socket.create_connection(listener.getsockname()):
            assert listener.entered.wait(60)
            closing = threading.Thread(target=accepting.abort)
            closing.start()
            closing.join(60)
            assert not closing.is_alive() and not listener.release.is_set()
        listener.release.set()
        assert engine.acceptors == {accepting}, "until its thread has ended"
        engine.loop.finish()
        engine.close()


def test_askers_whose_name_servers_are_silent_hold_up_nobody_else(make: Make, serve: Serve) -> None:
    origin = serve()
    answer = threading.Event()
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if "silent" in host:
            answer.wait(60)
        return ["127.0.0.1"]

    setup = make(resolve=resolve)
    askers = THREADS // SHARE + 2
    for number in range(askers):
        setup.listen("*.silent.test")
        for name in range(SHARE + 2):
            setup.connect(f"n{name}.l{number}.silent.test:443")
    assert wait_until(lambda: len(asked) == THREADS + askers - THREADS // SHARE)
    for name in ("one", "two"):
        setup.listen(f"{name}.test:{origin.port}")
        answered = read_all(setup.client(f"GET http://{name}.test:{origin.port}/ HTTP/1.0\r\n\r\n".encode()))
        assert answered.endswith(b"origin ok\n")
    assert len(asked) == THREADS + askers - THREADS // SHARE + 2, "and no more at a time than before"
    answer.set()
    assert wait_until(lambda: len(asked) == askers * (SHARE + 2) + 2), "the others had to wait, and got their turn"
    assert wait_until(lambda: [thread.name for thread in threading.enumerate()].count("skep-proxy resolver") <= THREADS)


def test_who_has_less_time_is_called_first_and_who_was_dropped_is_not_called() -> None:
    loop = Loop()
    long, short = loop.deadlines(0.2), loop.deadlines(0.05)
    called: list[str] = []
    for queue, name in ((short, "dropped"), (long, "long"), (short, "short"), (long, "dropped too")):
        queue.add(name, lambda name=name: called.append(name))
    long.add("end", loop.stop)
    short.drop("dropped")
    long.drop("dropped too")
    loop.run()
    assert called == ["short", "long"]
    loop.finish()
    loop.close()


def test_what_is_submitted_without_end_does_not_starve_connections() -> None:
    loop = Loop()
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def again() -> None:
        loop.submit(again)

    loop.register(reading, lambda mask: loop.stop())
    loop.submit(again)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    os.write(writing, b"x")
    thread.join(60)
    assert not thread.is_alive()
    loop.close()
    os.close(reading)
    os.close(writing)


def send_all(client: socket.socket, data: bytes) -> None:
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("end", ["source", "sink"])
def test_a_pair_that_cannot_be_spliced_is_copied_and_others_are_spliced(
    setup: Setup, serve: Serve, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The kernel says EINVAL for one pair, as it does for sockets of some kinds."""
    origin = serve(echo)
    setup.listen(f"localhost:{origin.port}")
    splice = os.splice
    refused: set[int] = set()
    spliced: list[int] = []

    def choosy(source: int, sink: int, count: int) -> int:
        fd = source if end == "source" else sink
        if fd in refused:
            raise OSError(errno.EINVAL, "Invalid argument")
        if not refused and stat.S_ISSOCK(os.fstat(fd).st_mode):
            refused.add(fd)
            raise OSError(errno.EINVAL, "Invalid argument")
        spliced.append(fd)
        return splice(source, sink, count)

    monkeypatch.setattr(os, "splice", choosy)
    data = os.urandom(300_000)
    for _ in range(2):
        client = setup.tunnel(f"localhost:{origin.port}")
        sender = threading.Thread(target=send_all, args=(client, data))
        sender.start()
        assert read_all(client) == data
        sender.join()
    assert refused and spliced
    assert setup.proxy._engine.pipes.enabled  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("extra", "status"), [(0, b" 200 "), (9000, b" 431 ")])
def test_a_head_beyond_the_limit_is_refused_however_it_arrives(
    small: Setup, origin: Origin, extra: int, status: bytes
) -> None:
    small.listen(f"localhost:{origin.port}")
    start = f"GET http://localhost:{origin.port}/ HTTP/1.1\r\nHost: x\r\n".encode()
    long = start + b"X: " + b"x" * extra + b"\r\n\r\n"
    assert status in read_head(small.client(long))
    second = small.client(start + b"\r\n" + long)
    assert b" 200 " in read_head(second)
    assert second.recv(10, socket.MSG_WAITALL) == b"origin ok\n"
    assert status in read_head(second)


@pytest.mark.parametrize(("extra", "status"), [(0, b" 200 "), (9000, b" 502 ")])
def test_a_response_head_beyond_the_limit_is_refused(small: Setup, serve: Serve, extra: int, status: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + b"x" * extra + b"\r\n\r\n")

    origin = serve(answer)
    small.listen(f"localhost:{origin.port}")
    assert status in read_head(small.client(f"GET http://localhost:{origin.port}/ HTTP/1.0\r\n\r\n".encode()))
