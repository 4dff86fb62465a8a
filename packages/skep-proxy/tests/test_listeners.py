"""Listeners, their limits and their end."""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
from pathlib import Path

import pytest
from skep_policy import Rules
from skep_proxy import Limits, Proxy
from skep_proxy.testing import Origin, read_all, wait_until

from .conftest import Make, Serve, Setup, descriptors

INHERITED = descriptors()


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_unix_socket_has_its_permissions_and_is_removed(
    setup: Setup, origin: Origin, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, Rules.build(allow=[f"localhost:{origin.port}"]), mode=mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n".encode())
        assert b"origin ok" in read_all(client)
    setup.proxy.close()
    assert not path.exists()


@pytest.mark.parametrize("plain", [False, True], ids=["tunnel", "plain"])
def test_client_that_closes_its_unix_socket_does_not_wait_for_a_silent_server(
    setup: Setup, serve: Serve, tmp_path: Path, plain: bool
) -> None:
    heard, over = threading.Event(), threading.Event()

    def silent(sock: socket.socket) -> None:
        sock.recv(1000)
        heard.set()
        while sock.recv(1000):
            pass
        over.wait(60)  # the end of what it reads is no reason for this one to close

    port = serve(silent).port
    setup.proxy.listen_unix(tmp_path / "s", Rules.build(allow=[f"localhost:{port}"]))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "s"))
        ask = (
            f"GET http://localhost:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"
            if plain
            else f"CONNECT localhost:{port} HTTP/1.1\r\n\r\nhi"
        )
        client.sendall(ask.encode())
        assert heard.wait(60)
    try:
        assert wait_until(lambda: setup.proxy.stats().connections == 0, 30)
    finally:
        over.set()


def test_unix_socket_is_never_taken_from_someone_else(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        setup.proxy.listen_unix(path, Rules.build())
    other = tmp_path / "other.sock"
    setup.proxy.listen_unix(other, Rules.build())
    other.unlink()
    other.write_text("new")
    setup.proxy.close()
    assert path.read_text() == "mine" and other.read_text() == "new"


def test_address_in_use_is_an_error_at_once(setup: Setup) -> None:
    setup.listen()
    with pytest.raises(OSError, match="in use"):
        setup.proxy.listen_tcp(*setup.address, Rules.build())


def test_connections_beyond_the_limit_wait_for_their_turn(make: Make, serve: Serve, origin: Origin) -> None:
    setup = make(limits=Limits(connections=2)).listen(f"localhost:{origin.port}")
    first, second = setup.tunnel(f"localhost:{origin.port}"), setup.tunnel(f"localhost:{origin.port}")
    third = setup.connect(f"localhost:{origin.port}")
    third.settimeout(0.3)
    with pytest.raises(TimeoutError):
        third.recv(1)
    first.close()
    third.settimeout(60)
    assert third.recv(100).startswith(b"HTTP/1.1 200 ")
    second.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert b"origin ok" in second.recv(1000)


def test_one_listener_does_not_use_up_the_connections_of_another(make: Make, origin: Origin) -> None:
    setup = make(limits=Limits(connections_each=2)).listen(f"localhost:{origin.port}")
    busy = setup.address
    for _ in range(2):
        setup.tunnel(f"localhost:{origin.port}")
    waiting = setup.connect(f"localhost:{origin.port}")
    setup.listen(f"localhost:{origin.port}")
    assert setup.address != busy
    setup.tunnel(f"localhost:{origin.port}")
    waiting.settimeout(0.2)
    with pytest.raises(TimeoutError):
        waiting.recv(1)


def test_running_out_of_descriptors_delays_clients_and_loses_none(setup: Setup) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    clients = [socket.create_connection(listener.getsockname(), 60) for _ in range(20)]
    for client in clients:
        client.sendall(b"GET http://bad.test/ HTTP/1.0\r\n\r\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare[-1] + 1, hard))
    try:
        for fd in spare:
            os.close(fd)
        setup.proxy.listen_on(listener, Rules.build())
        for client in clients:
            assert b" 403 " in read_all(client)
            client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert setup.proxy.stats().accepted == 20


def test_draining_lets_connections_end_and_takes_no_new_ones(setup: Setup, origin: Origin) -> None:
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    assert setup.proxy.drain(0.1) is False
    with pytest.raises(ConnectionRefusedError):
        setup.client()
    tunnel.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert b"origin ok" in read_all(tunnel)
    tunnel.close()
    assert setup.proxy.drain(10) is True


def test_closing_cuts_everything_and_is_idempotent(serve: Serve) -> None:
    origin = serve()
    before = len(descriptors())
    proxy = Proxy()
    address = proxy.listen_tcp("127.0.0.1", 0, Rules.build(allow=[f"localhost:{origin.port}"]))
    with socket.create_connection(address, 60) as client:
        client.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in client.recv(100)
        for _ in range(2):
            proxy.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert wait_until(lambda: len(descriptors()) <= before)
    assert not any(thread.name == "skep-proxy" for thread in threading.enumerate())
    with pytest.raises(RuntimeError):
        proxy.listen_tcp("127.0.0.1", 0, Rules.build())


def test_closing_from_an_event_does_not_wait_for_itself(make: Make) -> None:
    closed = threading.Event()

    def close(event: object) -> None:
        setup.proxy.close()
        closed.set()

    setup = make(on_event=close).listen()
    setup.connect("bad.test:443")
    assert closed.wait(60)


def test_every_descriptor_is_close_on_exec(setup: Setup, origin: Origin, tmp_path: Path) -> None:
    setup.proxy.listen_unix(tmp_path / "s", Rules.build())
    setup.listen(f"localhost:{origin.port}")
    setup.tunnel(f"localhost:{origin.port}", b"GET / HTTP/1.0\r\n\r\n").recv(100)
    with setup.proxy.connect(Rules.build()):
        for name in os.listdir("/proc/self/fd"):
            try:
                kind = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if kind.startswith(("socket:", "pipe:", "anon_inode:")) and kind not in INHERITED:
                assert not os.get_inheritable(int(name)), kind
