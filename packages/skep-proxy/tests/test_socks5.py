"""SOCKS5: the parser by itself, and through a proxy."""

from __future__ import annotations

import socket
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_proxy import socks5
from skep_proxy.testing import Origin, read_all, read_exactly

from .conftest import Setup

DOMAIN = b"\x05\x01\x00\x03\x09good.test\x01\xbb"


@pytest.mark.parametrize(
    ("data", "host"),
    [
        (DOMAIN, "good.test"),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbb", "192.0.2.1"),
        (b"\x05\x01\x00\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x01\xbb", "2001:db8:0:0:0:0:0:1"),
    ],
)
def test_request_whole_byte_by_byte_and_with_bytes_behind_it(data: bytes, host: str) -> None:
    for size in range(len(data)):
        assert socks5.request(data[:size]) is None
    for behind in (b"", b"hello"):
        step = socks5.request(data + behind)
        assert step is not None
        assert (step[0].host, step[0].port, step[1]) == (host, 443, len(data))


def test_greeting_takes_no_authentication_only() -> None:
    assert socks5.greeting(b"\x05") is None
    assert socks5.greeting(b"\x05\x02\x02") is None
    step = socks5.greeting(b"\x05\x02\x02\x00rest")
    assert step is not None and step[1] == 4
    with pytest.raises(socks5.BadSocks):
        socks5.greeting(b"\x05\x01\x02")


def test_credentials_whole_byte_by_byte_and_with_bytes_behind_them() -> None:
    data = b"\x01\x04skep\x06secret"
    for size in range(len(data)):
        assert socks5.credentials(data[:size]) is None
    for behind in (b"", DOMAIN):
        assert socks5.credentials(data + behind) == (b"skep", b"secret", len(data))
    with pytest.raises(socks5.BadSocks):
        socks5.credentials(b"\x05")


@pytest.mark.parametrize(("command", "code"), [(2, 7), (3, 7), (9, 7)])
def test_bind_and_udp_are_refused(command: int, code: int) -> None:
    with pytest.raises(socks5.BadSocks) as caught:
        socks5.request(b"\x05" + bytes((command,)) + DOMAIN[2:])
    assert caught.value.answer[1] == code


@given(st.binary(max_size=300))
def test_whatever_comes_is_understood_waited_for_or_refused(data: bytes) -> None:
    for parse in (socks5.greeting, socks5.request, socks5.credentials):
        try:
            parse(b"\x05" + data)
            parse(data)
        except socks5.BadSocks:
            pass


def ask(setup: Setup, host: bytes, port: int, *, step: int = 1000) -> socket.socket:
    client = setup.client()
    data = b"\x05\x01\x00"
    data += b"\x05\x01\x00\x03" + bytes((len(host),)) + host + port.to_bytes(2, "big")
    for at in range(0, len(data), step):
        client.sendall(data[at : at + step])
    assert read_exactly(client, 2) == b"\x05\x00"
    return client


@pytest.mark.parametrize("step", [1, 1000])
def test_allowed_name_is_reached_and_another_is_not(setup: Setup, origin: Origin, step: int) -> None:
    setup.names["good.test"] = "127.0.0.1"
    setup.listen(f"good.test:{origin.port}")
    client = ask(setup, b"good.test", origin.port, step=step)
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert read_exactly(client, 10) == socks5.reply(0)
    assert b"origin ok" in client.recv(1000)
    assert read_all(ask(setup, b"bad.test", origin.port)) == socks5.reply(2)
    assert read_all(ask(setup, b"a\0b", origin.port)) == socks5.reply(2)
    assert setup.events.denied() == [("bad.test", origin.port, "not-listed"), ("a\0b", origin.port, "malformed")]
    assert setup.table.asked == ["good.test"]


def test_failures_have_their_codes(setup: Setup) -> None:
    setup.names["dead.test"] = "127.0.0.1"
    setup.listen("dead.test:*", "nowhere.test:*")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert read_all(ask(setup, b"dead.test", port)) == socks5.reply(5)
    assert read_all(ask(setup, b"nowhere.test", port)) == socks5.reply(4)


def test_curl_with_both_forms(setup: Setup, origin: Origin) -> None:
    setup.names["good.test"] = "127.0.0.1"
    setup.listen(f"good.test:{origin.port}", f"127.0.0.1:{origin.port}")
    where = f"127.0.0.1:{setup.address[1]}"
    for how, host in (("--socks5-hostname", "good.test"), ("--socks5", "127.0.0.1")):
        url = f"http://{host}:{origin.port}/"
        done = subprocess.run(["curl", "-sS", "-m", "60", how, where, url], capture_output=True, check=False)
        assert done.stdout == b"origin ok\n", done.stderr
    done = subprocess.run(
        ["curl", "-sS", "-m", "60", "--socks5-hostname", where, f"http://bad.test:{origin.port}/"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 97
