"""CONNECT over real sockets: what is allowed arrives whole, what is not never leaves."""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import subprocess
import threading

import pytest
from skep_policy import EgressEvent
from skep_proxy.testing import Origin, read_all, read_exactly, read_head, wait_until

from .conftest import Make, Serve, Setup, in_time, reserved_port


def echo(sock: socket.socket) -> None:
    while data := sock.recv(65536):
        sock.sendall(data)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_allowed_name_is_reached_and_a_sibling_is_not(setup: Setup, origin: Origin) -> None:
    setup.names["good.test"] = setup.names["bad.test"] = "127.0.0.1"
    setup.listen(f"good.test:{origin.port}")
    tunnel = setup.tunnel(f"good.test:{origin.port}", b"GET / HTTP/1.0\r\n\r\n")
    assert b"origin ok" in tunnel.recv(1000)
    denied = read_all(setup.connect(f"bad.test:{origin.port}"))
    assert denied.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"\r\nX-Skep-Reason: not-listed\r\n" in denied
    assert f"--allow bad.test:{origin.port}\n".encode() in denied
    assert len(origin.heads) == 1
    assert setup.table.asked == ["good.test"], "a denied name is never resolved"
    assert setup.events.allowed() == [("good.test", origin.port)]
    assert setup.events.denied() == [("bad.test", origin.port, "not-listed")]


def test_curl_through_the_proxy(setup: Setup, origin: Origin) -> None:
    setup.names["good.test"] = "127.0.0.1"
    setup.listen(f"good.test:{origin.port}")
    base = ["curl", "-sS", "-m", "60", "-p", "-x", f"http://127.0.0.1:{setup.address[1]}"]
    good = subprocess.run([*base, f"http://good.test:{origin.port}/"], capture_output=True, text=True, check=False)
    assert good.stdout == "origin ok\n", good.stderr
    bad = subprocess.run([*base, f"http://bad.test:{origin.port}/"], capture_output=True, text=True, check=False)
    assert bad.returncode == 56 and "403" in bad.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_address_families_as_listener_and_as_target(setup: Setup, serve: Serve, host: str) -> None:
    origin = serve(host=host)
    name = f"[{host}]:{origin.port}" if ":" in host else f"{host}:{origin.port}"
    setup.listen(name, host=host)
    tunnel = setup.tunnel(name, b"GET / HTTP/1.0\r\n\r\n")
    assert b"origin ok" in tunnel.recv(1000)
    other = "127.0.0.2" if host == "127.0.0.1" else "[::2]"
    assert b" 403 " in read_all(setup.connect(f"{other}:{origin.port}"))


def test_bytes_sent_along_with_connect_arrive_first(setup: Setup, serve: Serve) -> None:
    origin = serve(echo)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}", b"first ")
    tunnel.sendall(b"second")
    assert read_exactly(tunnel, 12) == b"first second"


def test_connect_request_byte_by_byte(setup: Setup, origin: Origin) -> None:
    setup.listen(f"localhost:{origin.port}")
    client = setup.client()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in f"CONNECT localhost:{origin.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode():
        client.sendall(bytes((byte,)))
    assert read_head(client).startswith(b"HTTP/1.1 200 ")


def test_server_that_speaks_first_is_heard_at_once(setup: Setup, serve: Serve) -> None:
    def speak_first(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-x\r\n")
        sock.recv(1)

    origin = serve(speak_first)
    setup.listen(f"localhost:{origin.port}")
    assert read_exactly(setup.tunnel(f"localhost:{origin.port}"), 11) == b"SSH-2.0-x\r\n"


@pytest.mark.parametrize("splice", [True, False], ids=["splice", "copy"])
def test_large_transfers_both_ways_are_whole(setup: Setup, serve: Serve, splice: bool) -> None:
    setup.proxy._engine.pipes.enabled = splice  # pyright: ignore[reportPrivateUsage]
    size = 32 << 20
    received = hashlib.sha256()

    def swallow_then_send(sock: socket.socket) -> None:
        left = size
        while left:
            data = sock.recv(1 << 20)
            received.update(data)
            left -= len(data)
        for _ in range(size >> 20):
            sock.sendall(block)

    block = os.urandom(1 << 20)
    origin = serve(swallow_then_send)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    expected = hashlib.sha256()
    for _ in range(size >> 20):
        tunnel.sendall(block)
        expected.update(block)
    assert hashlib.sha256(read_exactly(tunnel, size)).digest() == expected.digest() == received.digest()
    tunnel.close()
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    closed = setup.events.closed[0]
    assert (closed.bytes_in, closed.bytes_out, closed.error) == (size, size, None)


def test_half_close_by_the_client_still_gets_the_answer(setup: Setup, serve: Serve) -> None:
    origin = serve(lambda sock: sock.sendall(read_all(sock)[::-1]))
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}", b"abc")
    tunnel.shutdown(socket.SHUT_WR)
    assert read_all(tunnel) == b"cba"


def test_half_close_by_the_server_still_takes_bytes(setup: Setup, serve: Serve) -> None:
    got: list[bytes] = []

    def handler(sock: socket.socket) -> None:
        sock.sendall(b"bye")
        sock.shutdown(socket.SHUT_WR)
        got.append(read_all(sock))

    origin = serve(handler)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    assert read_all(tunnel) == b"bye"
    tunnel.sendall(b"still here")
    tunnel.close()
    assert wait_until(lambda: got == [b"still here"])


def test_what_follows_urgent_data_is_not_left_behind(setup: Setup, serve: Serve) -> None:
    """A read stops at the urgent mark: a short one is no sign that there is no more."""
    answered = threading.Event()

    def urgent(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.recv(1)
        sock.send(b"before")
        sock.send(b"!", socket.MSG_OOB)
        sock.send(b"behind")
        answered.wait(60)

    origin = serve(urgent)
    client = setup.listen(f"localhost:{origin.port}").tunnel(f"localhost:{origin.port}", b"x")
    client.settimeout(60)
    seen = b""
    while not seen.endswith(b"behind"):
        seen += client.recv(100)
    assert seen.startswith(b"before")
    answered.set()


def test_reset_of_the_client_reaches_the_server(setup: Setup, serve: Serve) -> None:
    errors: list[int | None] = []

    def handler(sock: socket.socket) -> None:
        sock.sendall(b"hello")
        try:
            sock.recv(1)
            errors.append(None)
        except OSError as error:
            errors.append(error.errno)

    origin = serve(handler)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    assert read_exactly(tunnel, 5) == b"hello"
    reset(tunnel)
    assert wait_until(lambda: len(errors) == 1)
    assert errors[0] is not None


def test_reset_of_the_server_reaches_the_client(setup: Setup, serve: Serve) -> None:
    def answer_with_reset(sock: socket.socket) -> None:
        sock.recv(1)
        reset(sock)

    origin = serve(answer_with_reset)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}", b"x")
    with pytest.raises(ConnectionResetError):
        read_all(tunnel)
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    assert setup.events.closed[0].error == "Connection reset by peer"


def test_a_client_that_does_not_read_holds_the_server_up_and_nothing_grows(setup: Setup, serve: Serve) -> None:
    sent = 0

    def pour(sock: socket.socket) -> None:
        nonlocal sent
        sock.settimeout(None)
        while True:
            sent += sock.send(bytes(1 << 16))

    origin = serve(pour)
    setup.listen(f"localhost:{origin.port}")
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    settled = 0
    while not (settled and settled == sent):
        settled = sent
        threading.Event().wait(0.3)
    assert settled < 64 << 20
    assert len(read_exactly(tunnel, 2 * settled)) == 2 * settled, "and goes on once it reads"


def test_silence_is_no_reason_to_cut(hasty: Setup, serve: Serve) -> None:
    origin = serve(echo)
    hasty.listen(f"localhost:{origin.port}")
    tunnel = in_time(lambda: hasty.tunnel(f"localhost:{origin.port}"))
    threading.Event().wait(1)  # five times every limit of this proxy
    tunnel.sendall(b"x")
    assert tunnel.recv(1) == b"x"


def test_silent_client_is_closed_after_the_handshake_time(hasty: Setup) -> None:
    hasty.listen("example.com")
    assert hasty.client().recv(100) == b""

    def begin() -> None:
        assert read_all(hasty.client(b"CONNECT exa")).startswith(b"HTTP/1.1 408 ")

    in_time(begin)


def test_head_that_never_ends_is_refused(small: Setup) -> None:
    small.listen("example.com")
    client = small.client(b"CONNECT example.com:443 HTTP/1.1\r\n" + b"X: y\r\n" * 2000)
    assert read_all(client).startswith(b"HTTP/1.1 431 ")


def test_refused_connection_is_a_502_that_says_so(setup: Setup) -> None:
    setup.names["dead.test"] = "127.0.0.1"
    with reserved_port() as port:
        setup.listen(f"dead.test:{port}")
        answer = read_all(setup.connect(f"dead.test:{port}"))
    assert answer.startswith(b"HTTP/1.1 502 ") and b"X-Skep-Reason: connrefused" in answer
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    assert setup.events.closed[0].error == "connrefused"


def test_name_that_does_not_resolve_is_a_502(setup: Setup) -> None:
    setup.listen("nowhere.test")
    answer = read_all(setup.connect("nowhere.test:443"))
    assert answer.startswith(b"HTTP/1.1 502 ") and b"X-Skep-Reason: unresolvable" in answer
    assert setup.events.allowed() == [("nowhere.test", 443)], "the decision was to allow it"


def test_resolver_that_hangs_is_a_504(make: Make) -> None:
    from skep_proxy import Limits

    release = threading.Event()

    def hang(host: str, port: int) -> list[str]:
        release.wait(60)
        return ["127.0.0.1"]

    setup = make(limits=Limits(dial=0.2), resolve=hang).listen("slow.test")
    answer = read_all(setup.connect("slow.test:443"))
    release.set()
    assert answer.startswith(b"HTTP/1.1 504 ")


def test_next_address_is_tried_when_one_fails(setup: Setup, origin: Origin) -> None:
    setup.names["multi.test"] = ["::1", "127.0.0.9", "127.0.0.1"]
    setup.listen(f"multi.test:{origin.port}")
    tunnel = setup.tunnel(f"multi.test:{origin.port}", b"GET / HTTP/1.0\r\n\r\n")
    assert b"origin ok" in tunnel.recv(1000)


def test_next_address_is_tried_beside_one_that_is_silent(setup: Setup, origin: Origin) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.3", origin.port))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:  # a full backlog drops handshakes: the address is silent
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        setup.names["multi.test"] = ["127.0.0.3", "127.0.0.1"]
        setup.listen(f"multi.test:{origin.port}")
        tunnel = setup.tunnel(f"multi.test:{origin.port}", b"GET / HTTP/1.0\r\n\r\n")
        assert b"origin ok" in tunnel.recv(1000)
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0", "fd00::1"]
)
def test_name_that_resolves_to_a_private_address_is_denied(setup: Setup, origin: Origin, address: str) -> None:
    setup.names["sneaky.test"] = setup.names["meant.test"] = address
    setup.listen(f"sneaky.test:{origin.port}", private=["meant.test"])
    answer = read_all(setup.connect(f"sneaky.test:{origin.port}"))
    assert answer.startswith(b"HTTP/1.1 403 ") and b"X-Skep-Reason: private-address" in answer
    assert b'private = ["sneaky.test"]' in answer
    assert setup.events.denied() == [("sneaky.test", origin.port, "private-address")]
    assert origin.connections == 0


def test_of_two_answers_only_the_allowed_one_is_dialled(setup: Setup, serve: Serve) -> None:
    inside = serve()
    setup.names["mixed.test"] = ["192.0.2.1", "127.0.0.1"]
    setup.listen(f"mixed.test:{inside.port}", private=[])
    answer = read_all(setup.connect(f"mixed.test:{inside.port}"))
    assert b"X-Skep-Reason: private-address" in answer
    assert inside.connections == 0


def test_localhost_goes_to_loopback_whatever_a_resolver_says(setup: Setup, origin: Origin) -> None:
    setup.names["localhost"] = "192.0.2.1"
    setup.listen(f"localhost:{origin.port}", private=[])
    assert b"origin ok" in setup.tunnel(f"localhost:{origin.port}", b"GET / HTTP/1.0\r\n\r\n").recv(1000)
    assert setup.table.asked == []


def test_the_proxy_does_not_dial_itself(setup: Setup, origin: Origin) -> None:
    setup.listen("localhost:*", f"127.0.0.1:{origin.port}")
    port = setup.address[1]
    assert b"X-Skep-Reason: private-address" in read_all(setup.connect(f"localhost:{port}"))
    assert b"origin ok" in setup.tunnel(f"localhost:{origin.port}", b"GET / HTTP/1.0\r\n\r\n").recv(1000)


@pytest.mark.parametrize(
    "host",
    ["127.1", "0x7f.1", "2130706433", "0177.0.0.1", "a@b.test", "a%2eb.test", "[fe80::1%25eth0]", "a" * 64 + ".test"],
)
def test_malformed_hosts_are_denied_and_never_resolved(setup: Setup, host: str) -> None:
    setup.listen("*")
    answer = read_all(setup.connect(f"{host}:443"))
    assert answer.startswith(b"HTTP/1.1 403 ") and b"X-Skep-Reason: malformed" in answer
    assert setup.table.asked == []
    assert setup.events.denied()[0][2] == "malformed"


def test_decision_that_cannot_be_recorded_is_a_denial(make: Make, origin: Origin) -> None:
    full = True

    def disk(event: EgressEvent) -> None:
        if full:
            raise OSError(28, "No space left on device")

    setup = make(on_event=disk).listen(f"localhost:{origin.port}")
    answer = read_all(setup.connect(f"localhost:{origin.port}"))
    assert answer.startswith(b"HTTP/1.1 403 ") and b"X-Skep-Reason: not-recorded" in answer
    assert origin.connections == 0
    assert setup.proxy.stats().unrecorded > 0
    full = False
    assert b"origin ok" in setup.tunnel(f"localhost:{origin.port}", b"GET / HTTP/1.0\r\n\r\n").recv(1000)


def test_byte_budget_cuts_and_stays_cut(setup: Setup, serve: Serve) -> None:
    got: list[bytes] = []
    origin = serve(lambda sock: got.append(read_all(sock)))
    setup.names["a.test"] = setup.names["b.test"] = "127.0.0.1"
    setup.listen(f"a.test:{origin.port}", f"b.test:{origin.port}", max_bytes_out=1000)
    tunnel = setup.tunnel(f"a.test:{origin.port}", b"x" * 600)
    tunnel.sendall(b"y" * 600)
    with pytest.raises(ConnectionResetError):
        read_all(tunnel)
    assert setup.events.wait(lambda events: ("a.test", origin.port, "byte-budget") in events.denied())
    assert b"X-Skep-Reason: byte-budget" in read_all(setup.connect(f"a.test:{origin.port}"))
    other = setup.tunnel(f"b.test:{origin.port}", b"x" * 1000)
    other.shutdown(socket.SHUT_WR)
    assert read_all(other) == b""
    assert wait_until(lambda: b"x" * 1000 in got), "another destination has its own budget, to the last byte"


def test_rules_replaced_while_tunnels_stand(setup: Setup, serve: Serve) -> None:
    from skep_policy.rules import Rules

    origin = serve(echo)
    old = Rules.build(allow=[f"localhost:{origin.port}"])
    setup.address = setup.proxy.listen_tcp("127.0.0.1", 0, old)
    tunnel = setup.tunnel(f"localhost:{origin.port}")
    assert setup.proxy.replace_rules(old, Rules.build()) == 1
    assert b" 403 " in read_all(setup.connect(f"localhost:{origin.port}"))
    tunnel.sendall(b"x")
    assert tunnel.recv(1) == b"x"


def test_each_listener_has_its_own_rules(setup: Setup, origin: Origin) -> None:
    setup.listen(f"localhost:{origin.port}")
    with_rules = setup.address
    setup.listen()
    without = setup.address
    assert b" 403 " in read_all(setup.connect(f"localhost:{origin.port}"))
    setup.address = with_rules
    setup.tunnel(f"localhost:{origin.port}")
    assert without != with_rules
