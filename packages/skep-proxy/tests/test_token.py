"""A listener that wants a token: whoever does not show it gets nothing, and the token goes no further."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import Rules
from skep_proxy.auth import Token
from skep_proxy.socks5 import BadSocks, credentials
from skep_proxy.testing import Origin, read_all

from .conftest import Setup

TOKEN = "3f9c1c7a9be74a2e"
RIGHT = b"Proxy-Authorization: Basic " + base64.b64encode(b"skep:" + TOKEN.encode()) + b"\r\n"


def basic(text: str) -> bytes:
    return b"Proxy-Authorization: Basic " + base64.b64encode(text.encode()) + b"\r\n"


WRONG = {
    "none": b"",
    "another": basic("skep:3f9c1c7a9be74a2f"),
    "part of it": basic("skep:3f9c1c7a9be7"),
    "more than it": basic(f"skep:{TOKEN}x"),
    "another user": basic(f"root:{TOKEN}"),
    "no user": basic(TOKEN),
    "another scheme": RIGHT.replace(b"Basic", b"Bearer"),
    "not encoded": b"Proxy-Authorization: Basic skep:" + TOKEN.encode() + b"\r\n",
    "for the origin": RIGHT.replace(b"Proxy-", b""),
    "a wrong one first": basic("skep:wrong") + RIGHT,
}


@pytest.fixture
def locked(setup: Setup, origin: Origin) -> Setup:
    rules = Rules.build(allow=[f"localhost:{origin.port}"])
    setup.address = setup.proxy.listen_tcp("127.0.0.1", 0, rules, token=TOKEN)
    return setup


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("kind", ["CONNECT", "GET"])
def test_without_the_token_nothing_is_decided_or_dialled(
    locked: Setup, origin: Origin, kind: str, fields: bytes
) -> None:
    where = f"localhost:{origin.port}"
    target = where if kind == "CONNECT" else f"http://{where}/"
    head = f"{kind} {target} HTTP/1.1\r\nHost: {where}\r\n".encode()
    answer = read_all(locked.client(head + fields + b"\r\n"))
    assert answer.startswith(b"HTTP/1.1 407 ") and b'\r\nProxy-Authenticate: Basic realm="skep"\r\n' in answer
    assert TOKEN.encode() not in answer
    assert locked.events.events == [] and origin.connections == 0
    client = locked.client(head + RIGHT + b"Connection: close\r\n\r\n")
    assert b" 200 " in client.recv(100)


def test_every_request_of_a_connection_shows_it_and_no_origin_sees_it(locked: Setup, origin: Origin) -> None:
    where = f"localhost:{origin.port}".encode()
    request = b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n" % (where, where)
    answers = read_all(locked.client((request + RIGHT + b"\r\n") * 2 + request + b"\r\n"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"200", b"407"]
    assert len(origin.heads) == 2
    assert not any(b"authorization" in head.lower() or TOKEN.encode() in head for head in origin.heads)


def test_a_tunnel_after_a_plain_request_wants_it_too(locked: Setup, origin: Origin) -> None:
    where = f"localhost:{origin.port}".encode()
    get = b"GET http://%b/ HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (where, where, RIGHT)
    answers = read_all(locked.client(get + b"CONNECT %b HTTP/1.1\r\n\r\n" % where))
    assert answers.count(b"HTTP/1.1 200") == 1 and answers.count(b"HTTP/1.1 407") == 1


def socks(origin: Origin) -> bytes:
    return b"\x05\x01\x00\x03\x09localhost" + origin.port.to_bytes(2, "big")


def shown(user: bytes, password: bytes) -> bytes:
    return bytes((1, len(user))) + user + bytes((len(password),)) + password


@pytest.mark.parametrize("step", [1, 1000])
def test_socks_with_user_and_password(locked: Setup, origin: Origin, step: int) -> None:
    client = locked.client()
    data = b"\x05\x02\x00\x02" + shown(b"skep", TOKEN.encode()) + socks(origin)
    for at in range(0, len(data), step):
        client.sendall(data[at : at + step])
    answer = b""
    while len(answer) < 14:
        answer += client.recv(14 - len(answer))
    assert answer[:6] == b"\x05\x02\x01\x00\x05\x00"
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert read_all(client).endswith(b"origin ok\n")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x05\x01\x00", b"\x05\xff"),
        (b"\x05\x01\x02" + shown(b"skep", b"3f9c1c7a9be74a2f"), b"\x05\x02\x01\x01"),
        (b"\x05\x01\x02" + shown(b"", b""), b"\x05\x02\x01\x01"),
        (b"\x05\x01\x02" + b"\x05\x01\x00\x03", b"\x05\x02\x01\x01"),
    ],
    ids=["no authentication", "another", "empty", "skipped"],
)
def test_socks_without_it_is_refused(locked: Setup, origin: Origin, data: bytes, answer: bytes) -> None:
    assert read_all(locked.client(data + socks(origin))) == answer
    assert locked.events.events == [] and origin.connections == 0


def test_curl_takes_it_from_the_url(locked: Setup, origin: Origin) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for scheme, user, works in (("http", "skep", True), ("socks5h", "skep", True), ("http", "other", False)):
        url = f"{scheme}://{user}:{TOKEN}@127.0.0.1:{locked.address[1]}"
        command = ["curl", "-sS", "-m", "60", "--noproxy", "", "-x", url, f"http://localhost:{origin.port}/"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ("origin ok" in done.stdout) is works, done.stderr


def test_a_listener_without_a_token_asks_for_none(setup: Setup, origin: Origin) -> None:
    setup.listen(f"localhost:{origin.port}")
    assert setup.tunnel(f"localhost:{origin.port}")


@pytest.mark.parametrize("token", ["", "short", "x" * 256])
def test_a_token_that_cannot_serve_is_refused(setup: Setup, token: str) -> None:
    with pytest.raises(ValueError, match="16 to 255"):
        setup.proxy.listen_tcp("127.0.0.1", 0, Rules.build(), token=token)


def test_a_token_does_not_print_itself() -> None:
    assert TOKEN not in repr(Token(TOKEN))


@given(st.binary(max_size=300))
def test_whatever_is_shown_is_refused(noise: bytes) -> None:
    token = Token(TOKEN)
    assert not token.admits_field(noise) and not token.admits_field(b"Basic " + noise)
    assert not token.admits(b"skep", noise)
    try:
        found = credentials(b"\x01" + noise)
    except BadSocks:
        return
    assert found is None or found[2] <= len(noise) + 1
