"""Plain HTTP through the proxy, over real sockets."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import subprocess
import threading

import pytest
from skep_proxy import Limits
from skep_proxy.testing import Origin, read_all, read_exactly, read_head, wait_until

from .conftest import Make, Serve, Setup, in_time

NAMES = ("good.test", "other.test", "bad.test")


def ready(setup: Setup, *ports: int) -> Setup:
    """good.test and other.test are allowed at these ports, bad.test is not; all of them are on loopback."""
    setup.names.update(dict.fromkeys(NAMES, "127.0.0.1"))
    return setup.listen(*(f"{name}:{port}" for name in NAMES[:2] for port in ports))


def get(port: int, *, host: str = "good.test", path: str = "/", fields: str = "") -> bytes:
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n".encode()


def read_response(sock: socket.socket) -> tuple[bytes, bytes]:
    """(head, body) of a response with a Content-Length."""
    head = read_head(sock)
    match = re.search(rb"\r\nContent-Length: ([0-9]+)\r\n", head, re.IGNORECASE)
    return head, read_exactly(sock, int(match[1]) if match else 0)


def test_each_request_of_a_connection_is_decided_and_goes_to_its_own_server(setup: Setup, serve: Serve) -> None:
    first, second = serve(), serve(body=b"second\n")
    ready(setup, first.port, second.port)
    client = setup.client(get(first.port))
    assert read_response(client)[1] == b"origin ok\n"
    client.sendall(get(first.port, host="bad.test"))
    head, body = read_response(client)
    assert head.startswith(b"HTTP/1.1 403 ") and b"X-Skep-Reason: not-listed" in head
    assert f"--allow bad.test:{first.port}".encode() in body
    client.sendall(get(second.port))
    assert read_response(client)[1] == b"second\n"
    client.sendall(get(first.port, host="other.test"))
    assert read_response(client)[1] == b"origin ok\n"
    assert len(first.heads) == 2 and len(second.heads) == 1
    assert b"Host: other.test:" in first.heads[1]


def test_requests_to_one_target_share_its_connection(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client()
    for _ in range(3):
        client.sendall(get(origin.port))
        read_response(client)
    assert len(origin.heads) == 3 and origin.connections == 1
    other = setup.client(get(origin.port))
    read_response(other)
    assert origin.connections == 2, "another client never shares it"


def test_requests_sent_ahead_are_answered_in_order(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    requests = [get(origin.port, path="/1"), get(origin.port, host="bad.test"), get(origin.port, path="/3")]
    client = setup.client(b"".join(requests * 20))
    statuses = [read_response(client)[0][9:12] for _ in range(60)]
    assert statuses == [b"200", b"403", b"200"] * 20
    assert [target for _, target in origin.requests] == ["/1", "/3"] * 20


def test_what_is_for_the_proxy_is_not_passed_on(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    fields = (
        "Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive, X-Mine\r\n"
        "X-Mine: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nX-Kept: 2\r\nCookie: a=b\r\n"
    )
    read_response(setup.client(get(origin.port, fields=fields)))
    head = origin.heads[0]
    assert head.startswith(b"GET / HTTP/1.1\r\nHost: good.test:%d\r\n" % origin.port)
    for gone in (b"Proxy-", b"X-Mine", b"Keep-Alive", b"TE:", b"Connection", b"c2VjcmV0"):
        assert gone not in head
    assert b"\r\nX-Kept: 2\r\n" in head and b"\r\nCookie: a=b\r\n" in head


def test_the_target_wins_over_the_host_field(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client(get(origin.port).replace(b"Host: good.test", b"Host: bad.test"))
    assert read_response(client)[0].startswith(b"HTTP/1.1 200 ")
    assert b"bad.test" not in origin.heads[0]
    client.sendall(get(origin.port, host="bad.test").replace(b"Host: bad.test", b"Host: good.test"))
    assert read_response(client)[0].startswith(b"HTTP/1.1 403 ")
    assert len(origin.heads) == 1


AMBIGUOUS = [
    *(
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
    ),
    *("Content-Length: +4\r\n\r\nabcd", "Content-Length: 4, 4\r\n\r\nabcd", "Content-Length: 0x4\r\n\r\nabcd"),
    *("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding: identity\r\n\r\n"),
    *(
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    ),
    *("Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n"),
    *("Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n"),
    *(
        "X: a\r\n b\r\n\r\n",
        "X : a\r\n\r\n",
        "X: a\rb\r\n\r\n",
        "X: a\nY: b\r\n\r\n",
        "X: a\0b\r\n\r\n",
        "Host: y\r\n\r\n",
        "X\r\n\r\n",
    ),
]
TARGETS = [
    *(
        "GET http://good.test:PORT/a b HTTP/1.1",
        "GET  http://good.test:PORT/ HTTP/1.1",
        "GET http://good.test:PORT/ HTTP/1.1 ",
    ),
    *(
        "GET http://good.test:PORT/#frag HTTP/1.1",
        "GET / HTTP/1.1",
        "GET https://good.test:PORT/ HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ),
    *(
        "\r\nGET http://good.test:PORT/ HTTP/1.1",
        "GET http://good.test:PORT/\tHTTP/1.1",
        "G(T http://good.test:PORT/ HTTP/1.1",
    ),
    *("CONNECT good.test:PORT HTTP/1.1\r\nContent-Length: 5", "GET http://good.test:PORT/ HTTP/1.1\r\n:x"),
]
MESSAGES = [
    *(f"POST http://good.test:PORT/ HTTP/1.1\r\nHost: x\r\n{case}" for case in AMBIGUOUS),
    *(f"{case}\r\nHost: x\r\n\r\n" for case in TARGETS),
    "GET http://good.test:PORT/ HTTP/1.1\r\n\r\n",
    "POST http://good.test:PORT/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("lines", MESSAGES, ids=[re.sub(r"[^!-~]+", "_", text)[-40:] for text in MESSAGES])
def test_messages_with_two_readings_are_a_400(setup: Setup, serve: Serve, lines: str) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client(
        lines.replace("PORT", str(origin.port)).encode("latin-1") + get(origin.port, path="/smuggled")
    )
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"\r\nContent-Length: ") == 1
    assert not any(target == "/smuggled" for _, target in origin.requests)
    assert read_response(setup.client(get(origin.port)))[0].startswith(b"HTTP/1.1 200 ")


def test_userinfo_in_the_target_is_denied_as_malformed(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    head, _ = read_response(
        setup.client(f"GET http://good.test@bad.test:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    )
    assert b"X-Skep-Reason: malformed" in head


def echo_body(sock: socket.socket) -> None:
    """Answers each request with the SHA-256 of its body."""
    while head := read_head(sock):
        digest = hashlib.sha256()
        match = re.search(rb"Content-Length: ([0-9]+)", head)
        if match:
            left = int(match[1])
            while left:
                data = sock.recv(min(left, 1 << 20))
                digest.update(data)
                left -= len(data)
        elif b"Transfer-Encoding: chunked" in head:
            while size := int(read_line(sock), 16):
                digest.update(read_exactly(sock, size))
                assert read_line(sock) == b"\r\n"
            while (line := read_line(sock)) != b"\r\n":
                digest.update(line)
        answer = digest.hexdigest().encode()
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))


def read_line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += sock.recv(1)
    return line


@pytest.mark.parametrize("splice", [True, False], ids=["splice", "copy"])
def test_large_body_with_a_length_arrives_whole_and_the_connection_lives_on(
    setup: Setup, serve: Serve, splice: bool
) -> None:
    setup.proxy._engine.pipes.enabled = splice  # pyright: ignore[reportPrivateUsage]
    origin = serve(echo_body)
    ready(setup, origin.port)
    body = os.urandom(8 << 20)
    head = f"POST http://good.test:{origin.port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    client = setup.client()
    for _ in range(2):
        client.sendall(head.encode() + body)
        assert read_response(client)[1].decode() == hashlib.sha256(body).hexdigest()
    assert origin.connections == 1


@pytest.mark.parametrize("step", [1, 7, 100000])
def test_chunked_body_is_framed_anew_with_its_trailers(setup: Setup, serve: Serve, step: int) -> None:
    origin = serve(echo_body)
    ready(setup, origin.port)
    body = (
        f"POST http://good.test:{origin.port}/ HTTP/1.1\r\nHost: x\r\n"
        "Transfer-Encoding: Chunked\r\nTrailer: X-Sum\r\n\r\n"
        "5;ext=1\r\nhello\r\n000a\r\n0123456789\r\n0\r\nX-Sum: 7\r\nContent-Length: 3\r\n\r\n"
    ).encode() + get(origin.port, path="/next")
    client = setup.client()
    for at in range(0, len(body), step):
        client.sendall(body[at : at + step])
    expected = hashlib.sha256(b"hello0123456789X-Sum: 7\r\n").hexdigest()
    assert read_response(client)[1].decode() == expected
    assert read_response(client)[1].decode() == hashlib.sha256(b"").hexdigest()


def canned(serve: Serve, answer: bytes, *, close: bool = False) -> tuple[Origin, list[bytes]]:
    """An origin that answers every request head with the same bytes."""
    heads: list[bytes] = []

    def handler(sock: socket.socket) -> None:
        while head := read_head(sock):
            heads.append(head)
            sock.sendall(answer)
            if close:
                return

    return serve(handler), heads


def test_chunked_response_with_trailers(setup: Setup, serve: Serve) -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    origin, _ = canned(serve, answer)
    ready(setup, origin.port)
    client = setup.client(get(origin.port) * 2)
    expected = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"
    assert read_exactly(client, 2 * len(expected)) == expected * 2
    assert origin.connections == 1


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n", b"X: until the end\r\n"])
def test_piece_of_a_stream_arrives_before_the_next_is_made(setup: Setup, serve: Serve, framing: bytes) -> None:
    go_on = threading.Event()
    chunked = framing.startswith(b"T")

    def handler(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n")
        for piece in (b"first", b"second"):
            sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            go_on.wait(60)
        sock.sendall(b"0\r\n\r\n" if chunked else b"")

    origin = serve(handler)
    ready(setup, origin.port)
    client = setup.client(get(origin.port))
    read_head(client)
    assert b"first" in read_exactly(client, 10 if chunked else 5)
    go_on.set()
    assert b"second" in read_exactly(client, 11 if chunked else 6)


def test_http_1_0_client_gets_a_body_without_chunks_and_the_end(setup: Setup, serve: Serve) -> None:
    origin, heads = canned(serve, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    ready(setup, origin.port)
    answer = read_all(setup.client(f"GET http://good.test:{origin.port}/ HTTP/1.0\r\n\r\n".encode()))
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"
    assert b"Host: good.test" in heads[0]


def test_response_that_ends_with_its_connection(setup: Setup, serve: Serve) -> None:
    origin, _ = canned(serve, b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nall of it", close=True)
    ready(setup, origin.port)
    assert read_all(setup.client(get(origin.port))) == b"HTTP/1.1 200 OK\r\nX: y\r\nConnection: close\r\n\r\nall of it"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
    ],
)
def test_responses_without_a_body(setup: Setup, serve: Serve, method: str, answer: bytes) -> None:
    origin, _ = canned(serve, answer)
    ready(setup, origin.port)
    request = get(origin.port).replace(b"GET", method.encode())
    client = setup.client(request * 2)
    assert read_exactly(client, 2 * len(answer)) == answer * 2
    assert origin.connections == 1


def test_denied_head_has_no_body(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client(get(origin.port, host="bad.test").replace(b"GET", b"HEAD") + get(origin.port))
    assert read_head(client).startswith(b"HTTP/1.1 403 ")
    assert read_response(client)[1] == b"origin ok\n"


def test_expect_continue_is_answered_by_the_server(setup: Setup, serve: Serve) -> None:
    def handler(sock: socket.socket) -> None:
        assert b"Expect: 100-continue" in read_head(sock)
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = read_exactly(sock, 5)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

    origin = serve(handler)
    ready(setup, origin.port)
    fields = "Expect: 100-continue\r\nContent-Length: 5\r\n"
    client = setup.client(get(origin.port, fields=fields).replace(b"GET", b"PUT"))
    assert read_head(client) == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.sendall(b"hello")
    assert read_response(client)[1] == b"hello"


def test_answer_before_the_request_is_complete_ends_the_connection(setup: Setup, serve: Serve) -> None:
    def handler(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")

    origin = serve(handler)
    ready(setup, origin.port)
    client = setup.client(
        get(origin.port, fields="Content-Length: 100000000\r\n").replace(b"GET", b"PUT") + b"x" * 70000
    )
    answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n") and answer.endswith(b"\r\n\r\nbig")
    assert setup.events.wait(lambda events: len(events.closed) == 1)


def test_websocket_upgrade_becomes_a_tunnel(setup: Setup, serve: Serve) -> None:
    def handler(sock: socket.socket) -> None:
        head = read_head(sock)
        assert b"\r\nConnection: upgrade\r\nUpgrade: websocket\r\n" in head
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi")
        while data := sock.recv(100):
            sock.sendall(data.upper())

    origin = serve(handler)
    ready(setup, origin.port)
    client = setup.client(get(origin.port, fields="Upgrade: websocket\r\nConnection: Upgrade\r\n") + b"early")
    head = read_head(client)
    assert head.startswith(b"HTTP/1.1 101 ") and b"\r\nUpgrade: websocket\r\n" in head
    assert read_exactly(client, 7) == b"hiEARLY"
    client.close()
    assert setup.events.wait(lambda events: len(events.closed) == 1)


def test_switch_nobody_asked_for_is_a_502(setup: Setup, serve: Serve) -> None:
    origin, _ = canned(serve, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")
    ready(setup, origin.port)
    assert read_all(setup.client(get(origin.port))).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    ],
)
def test_response_with_two_readings_is_a_502(setup: Setup, serve: Serve, answer: bytes) -> None:
    origin, _ = canned(serve, answer)
    ready(setup, origin.port)
    assert read_all(setup.client(get(origin.port))).startswith(b"HTTP/1.1 502 ")


def test_response_cut_in_the_middle_cuts_the_client(setup: Setup, serve: Serve) -> None:
    origin, _ = canned(serve, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this", close=True)
    ready(setup, origin.port)
    with pytest.raises(ConnectionResetError):
        read_all(setup.client(get(origin.port)))


def test_bytes_after_a_response_are_not_taken_for_the_next(setup: Setup, serve: Serve) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    origin, _ = canned(serve, answer + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
    ready(setup, origin.port)
    client = setup.client()
    for _ in range(3):
        client.sendall(get(origin.port))
        assert read_exactly(client, len(answer)) == answer
    assert origin.connections == 3


def test_kept_connection_that_died_is_replaced(setup: Setup, serve: Serve) -> None:
    calls = 0

    def handler(sock: socket.socket) -> None:
        nonlocal calls
        calls += 1
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        read_head(sock)  # the second request is read and never answered

    origin = serve(handler)
    ready(setup, origin.port)
    client = setup.client(get(origin.port))
    assert read_response(client)[1] == b"ok"
    client.sendall(get(origin.port))
    assert read_response(client)[1] == b"ok"
    assert calls == 2
    post = get(origin.port, fields="Content-Length: 0\r\n").replace(b"GET", b"POST")
    client.sendall(post)
    assert read_head(client).startswith(b"HTTP/1.1 502 "), "what is not safe to repeat is not repeated"


def test_connect_after_plain_requests(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client(get(origin.port))
    read_response(client)
    client.sendall(f"CONNECT good.test:{origin.port} HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n".encode())
    assert read_head(client).startswith(b"HTTP/1.1 200 Connection established")
    assert read_response(client)[1] == b"origin ok\n"


def test_killed_client_ends_the_request_at_the_server(setup: Setup, serve: Serve) -> None:
    ended: list[bool] = []

    def handler(sock: socket.socket) -> None:
        read_head(sock)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        try:
            while True:
                sock.sendall(bytes(1 << 16))
        finally:
            ended.append(True)

    origin = serve(handler)
    ready(setup, origin.port)
    client = setup.client(get(origin.port))
    read_exactly(client, 1 << 20)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    assert wait_until(lambda: ended == [True])
    assert setup.events.wait(lambda events: len(events.closed) == 1)


def test_idle_connection_between_requests_is_closed(make: Make, serve: Serve) -> None:
    origin = serve()
    setup = ready(make(limits=Limits(keep_alive=0.3)), origin.port)
    client = setup.client(get(origin.port))
    read_response(client)
    assert client.recv(1) == b""


def test_slow_response_is_waited_for(hasty: Setup, serve: Serve) -> None:
    def handler(sock: socket.socket) -> None:
        read_head(sock)
        threading.Event().wait(1)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    origin = serve(handler)
    ready(hasty, origin.port)

    def fetch() -> None:
        assert read_response(hasty.client(get(origin.port)))[1] == b"ok"

    in_time(fetch)


def test_budget_counts_heads_and_bodies(setup: Setup, serve: Serve) -> None:
    origin = serve(echo_body)
    setup.names["good.test"] = "127.0.0.1"
    setup.listen(f"good.test:{origin.port}", max_bytes_out=500)
    client = setup.client(get(origin.port))
    assert read_response(client)[0].startswith(b"HTTP/1.1 200 ")
    client.sendall(get(origin.port, fields="Content-Length: 1000\r\n").replace(b"GET", b"PUT") + b"x" * 1000)
    assert read_response(client)[0].startswith(b"HTTP/1.1 403 ")
    assert setup.events.denied()[-1] == ("good.test", origin.port, "byte-budget")


def test_byte_counts_are_what_the_client_saw(setup: Setup, serve: Serve) -> None:
    origin = serve()
    ready(setup, origin.port)
    client = setup.client(get(origin.port))
    head, body = read_response(client)
    assert setup.events.wait(lambda events: len(events.closed) == 1)
    assert setup.events.closed[0].bytes_in == len(head) + len(body)
    assert setup.events.closed[0].bytes_out == len(origin.heads[0])


def test_curl_in_all_its_ways(setup: Setup, serve: Serve) -> None:
    origin = serve(echo_body)
    ready(setup, origin.port)
    base = ["curl", "-sS", "-m", "60", "-x", f"http://127.0.0.1:{setup.address[1]}", f"http://good.test:{origin.port}/"]
    body = os.urandom(3 << 20)
    expected = hashlib.sha256(body).hexdigest()
    for how in (["-T", "-"], ["--data-binary", "@-"], ["-0", "--data-binary", "@-"]):
        done = subprocess.run([*base, *how], input=body, capture_output=True, check=False)
        assert done.stdout.decode() == expected, (how, done.stderr)
