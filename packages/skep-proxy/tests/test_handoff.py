"""Listeners handed over: taken when they are what they claim, and gone with the connection they came by."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from skep_policy import Rules
from skep_proxy import Proxy
from skep_proxy.testing import Origin, read_all, wait_until

from .conftest import Setup, refused

Listeners = Sequence[tuple[str, socket.socket]]


def hand_over(control: socket.socket, listeners: Listeners, **more: Any) -> None:
    listen = [{"kind": kind, "address": "127.0.0.1", "port": 1} for kind, _ in listeners]
    line = b"SKEP-HANDOFF 1 " + json.dumps({"listen": listen, **more}).encode() + b"\n"
    socket.send_fds(control, [line], [sock.fileno() for _, sock in listeners])


def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def get_through(address: tuple[str, int], port: int) -> bytes:
    with socket.create_connection(address, 60) as sock:
        sock.sendall(f"GET http://localhost:{port}/ HTTP/1.0\r\n\r\n".encode())
        return read_all(sock)


@pytest.fixture
def rules(origin: Origin) -> Rules:
    return Rules.build(allow=[f"localhost:{origin.port}"])


def test_listener_is_served_until_the_connection_ends(setup: Setup, origin: Origin, rules: Rules) -> None:
    control = setup.proxy.connect(rules)
    with listener() as mine:
        address = mine.getsockname()
        hand_over(control, [("proxy", mine)])
        assert control.recv(100) == b"go\n"
    assert b"origin ok" in get_through(address, origin.port)
    with socket.create_connection(address, 60) as tunnel:
        tunnel.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in tunnel.recv(100)
        copy = os.dup(control.fileno())
        control.close()
        assert b"origin ok" in get_through(address, origin.port), "another copy of the end keeps it alive"
        os.close(copy)
        with pytest.raises(ConnectionError):
            read_all(tunnel)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 60)


def test_many_listeners_over_several_messages(setup: Setup, origin: Origin, rules: Rules) -> None:
    mine = [listener() for _ in range(300)]
    addresses = [sock.getsockname() for sock in mine]
    with setup.proxy.connect(rules) as control:
        hand_over(control, [("proxy", sock) for sock in mine[:250]], more=True)
        hand_over(control, [("proxy", sock) for sock in mine[250:]])
        assert control.recv(100) == b"go\n"
        for sock in mine:
            sock.close()
        for address in addresses[::50]:
            assert b"origin ok" in get_through(address, origin.port)


def not_listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def datagrams() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def unix_listener() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")
    sock.listen()
    return sock


@pytest.mark.parametrize(
    ("kind", "made"),
    [("proxy", not_listening), ("proxy", datagrams), ("tcp", unix_listener), ("dns", listener), ("other", listener)],
)
def test_socket_that_cannot_serve_is_refused_with_the_whole_hand_over(
    setup: Setup, rules: Rules, kind: str, made: Any
) -> None:
    with setup.proxy.connect(rules) as control, listener() as good, made() as bad:
        address = good.getsockname()
        hand_over(control, [("proxy", good), (kind, bad)])
        answer = read_all(control)
        assert answer.startswith(b"refused ") and answer.endswith(b"\n")
        good.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, 60)


def test_descriptor_that_is_no_socket_is_refused(setup: Setup, rules: Rules) -> None:
    with setup.proxy.connect(rules) as control, Path("/dev/null").open() as null:
        line = b'SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "", "port": 1}]}\n'
        socket.send_fds(control, [line], [null.fileno()])
        assert read_all(control).startswith(b"refused ")


@pytest.mark.parametrize(
    "line",
    [
        b"SKEP-HANDOFF 1 {}\n",
        b"SKEP-HANDOFF 1 []\n",
        b"SKEP-HANDOFF 1 \xff\n",
        b"SKEP-HANDOFF 2 {}\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b'SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "", "port": 1}]}\n',
        b"x" * 70000,
    ],
    ids=["empty", "list", "bytes", "version", "http", "no descriptor", "endless"],
)
def test_malformed_hand_over_is_refused(setup: Setup, rules: Rules, line: bytes) -> None:
    with setup.proxy.connect(rules) as control:
        control.settimeout(60)
        control.sendall(line)
        assert read_all(control).startswith(b"refused ")


def test_more_descriptors_than_names_are_refused(setup: Setup, rules: Rules) -> None:
    with setup.proxy.connect(rules) as control, listener() as one, listener() as two:
        line = b'SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "", "port": 1}]}\n'
        socket.send_fds(control, [line], [one.fileno(), two.fileno()])
        assert read_all(control).startswith(b"refused ")


def test_hand_over_on_a_unix_listener(setup: Setup, origin: Origin, rules: Rules, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, rules)
    with socket.socket(socket.AF_UNIX) as control, listener() as mine:
        control.connect(str(path))
        address = mine.getsockname()
        hand_over(control, [("proxy", mine)])
        assert control.recv(100) == b"go\n"
        mine.close()
        assert b"origin ok" in get_through(address, origin.port)
        assert setup.proxy.replace_rules(rules, Rules.build()) == 2
        assert b" 403 " in get_through(address, origin.port)
    assert wait_until(lambda: refused(address))
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(str(path))
        plain.sendall(b"GET http://bad.test/ HTTP/1.0\r\n\r\n")
        assert b" 403 " in read_all(plain), "and the same socket speaks HTTP"


def test_worker_that_makes_its_listener_block_holds_up_nobody_else(
    setup: Setup, origin: Origin, rules: Rules, tmp_path: Path
) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, rules)
    other = setup.proxy.listen_tcp("127.0.0.1", 0, rules)
    with socket.socket(socket.AF_UNIX) as control, listener() as kept, listener() as mine:
        control.connect(str(path))
        hand_over(control, [("proxy", kept), ("proxy", mine)])
        assert control.recv(100) == b"go\n"
        kept.setblocking(True)
        for _ in range(50):  # the acceptor is woken for clients that are gone by then, and blocks
            with socket.create_connection(kept.getsockname(), 60):
                kept.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    kept.accept()[0].close()
                kept.setblocking(True)
        assert b"origin ok" in get_through(other, origin.port)
        setup.proxy.close()


def test_fault_of_ours_cuts_its_connection_and_no_other(origin: Origin) -> None:
    def broken(host: str, port: int) -> Any:
        return [object()]  # what a resolver must not return

    with Proxy(resolve=broken) as proxy:
        address = proxy.listen_tcp("127.0.0.1", 0, Rules.build(allow=[f"localhost:{origin.port}", "other.test"]))
        with socket.create_connection(address, 60) as client:
            client.sendall(b"CONNECT other.test:443 HTTP/1.1\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                read_all(client)
        assert b"origin ok" in get_through(address, origin.port)
        assert proxy.stats().faults == 1
        assert wait_until(lambda: proxy.stats().connections == 0)


def test_descriptors_beside_a_plain_request_are_closed(setup: Setup, rules: Rules, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, rules)
    with socket.socket(socket.AF_UNIX) as client, listener() as mine:
        client.connect(str(path))
        address = mine.getsockname()
        socket.send_fds(client, [b"GET http://bad.test/ HTTP/1.0\r\n\r\n"], [mine.fileno()])
        assert b" 403 " in read_all(client)
        mine.close()
        assert wait_until(lambda: refused(address))


def test_nothing_is_left_of_a_client_that_went_away_before_the_answer(
    setup: Setup, rules: Rules, tmp_path: Path
) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, rules)
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as control, listener() as mine:
            control.connect(str(path))
            address = mine.getsockname()
            hand_over(control, [("proxy", mine)])
        assert wait_until(lambda address=address: refused(address))
    assert setup.proxy.stats().faults == 0


def test_request_on_a_unix_socket_that_one_read_does_not_hold(setup: Setup, rules: Rules, tmp_path: Path) -> None:
    path = tmp_path / "proxy.sock"
    setup.proxy.listen_unix(path, rules)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.settimeout(60)
        client.sendall(b"GET http://bad.test/ HTTP/1.0\r\nX: " + b"x" * 80000)
        assert b" 431 " in read_all(client)
