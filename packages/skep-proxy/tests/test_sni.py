"""Tunnels that carry TLS: real handshakes through the proxy."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
import trustme
from skep_proxy.testing import read_exactly

from .conftest import Serve, Setup, in_time

CA = trustme.CA()
CERT = CA.issue_cert("good.test", "other.test", "third.test")


def tls_origin(sock: socket.socket) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CERT.configure_cert(context)  # pyright: ignore[reportUnknownMemberType]
    sock.settimeout(60)
    try:
        with context.wrap_socket(sock, server_side=True) as tls:
            tls.sendall(tls.recv(100).upper())
    except ssl.SSLError:
        pass


def handshake(tunnel: socket.socket, name: str | None, *, verify: bool = True) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    CA.configure_trust(context)  # pyright: ignore[reportUnknownMemberType]
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(tunnel, server_hostname=name)


def ready(setup: Setup, serve: Serve, **rules: str) -> int:
    port = serve(tls_origin).port
    setup.names.update(dict.fromkeys(("good.test", "other.test", "third.test"), "127.0.0.1"))
    setup.listen(f"good.test:{port}", f"other.test:{port}", **rules)
    return port


@pytest.mark.parametrize("name", ["good.test", "other.test"])
def test_name_of_the_tunnel_or_of_another_allowed_host_passes(setup: Setup, serve: Serve, name: str) -> None:
    port = ready(setup, serve)
    with handshake(setup.tunnel(f"good.test:{port}"), name) as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"HELLO"


def test_tunnel_to_an_address_takes_the_names_that_are_allowed(setup: Setup, serve: Serve) -> None:
    port = serve(tls_origin).port
    setup.listen(f"127.0.0.1:{port}", f"good.test:{port}")
    with handshake(setup.tunnel(f"127.0.0.1:{port}"), "good.test") as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"HELLO"
    with pytest.raises(OSError):  # noqa: PT011  a reset or an end, whichever TLS sees first
        handshake(setup.tunnel(f"127.0.0.1:{port}"), "other.test")
    assert setup.events.wait(lambda events: ("other.test", port, "sni-mismatch") in events.denied())


def test_name_that_is_not_allowed_is_cut_before_it_leaves(setup: Setup, serve: Serve) -> None:
    port = ready(setup, serve)
    tunnel = setup.tunnel(f"good.test:{port}")
    with pytest.raises(OSError):  # noqa: PT011  a reset or an end, whichever TLS sees first
        handshake(tunnel, "third.test")
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    assert setup.events.denied() == [("third.test", port, "sni-mismatch")]
    assert setup.events.closed[0].error == "sni-mismatch"


def test_sni_off_lets_every_name_pass(setup: Setup, serve: Serve) -> None:
    port = ready(setup, serve, sni="off")
    with handshake(setup.tunnel(f"good.test:{port}"), "third.test") as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"HELLO"


def test_no_name_passes(setup: Setup, serve: Serve) -> None:
    port = ready(setup, serve)
    with handshake(setup.tunnel(f"good.test:{port}"), None, verify=False) as tls:
        tls.sendall(b"hello")
        assert tls.recv(100) == b"HELLO"


def test_malformed_hello_is_cut(setup: Setup, serve: Serve) -> None:
    got: list[bytes] = []
    port = serve(lambda sock: got.append(sock.recv(100))).port
    setup.listen(f"localhost:{port}")
    tunnel = setup.tunnel(f"localhost:{port}")
    tunnel.sendall(b"\x16\x03\x01\x00\x05hello")
    with pytest.raises(ConnectionResetError):
        tunnel.recv(1)
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    assert setup.events.denied() == [("localhost", port, "malformed")]
    assert got in ([], [b""])


def test_hello_that_stops_half_way_is_cut_in_time(hasty: Setup, serve: Serve) -> None:
    got: list[bytes] = []
    port = serve(lambda sock: got.append(sock.recv(100))).port
    hasty.listen(f"localhost:{port}")
    tunnel = in_time(lambda: hasty.tunnel(f"localhost:{port}"))
    tunnel.sendall(b"\x16\x03\x01\x00\xff\x01")
    with pytest.raises(ConnectionResetError):
        tunnel.recv(1)


def test_client_that_says_nothing_hears_the_server_and_is_not_timed(hasty: Setup, serve: Serve) -> None:
    def handler(sock: socket.socket) -> None:
        sock.sendall(b"220 ready\r\n")
        sock.sendall(sock.recv(100))

    port = serve(handler).port
    hasty.listen(f"localhost:{port}")
    tunnel = in_time(lambda: hasty.tunnel(f"localhost:{port}"))
    assert read_exactly(tunnel, 11) == b"220 ready\r\n"
    threading.Event().wait(0.5)
    tunnel.sendall(b"EHLO")
    assert read_exactly(tunnel, 4) == b"EHLO"
