"""What a sandbox hands over is taken at once, and the proxy started for the first who knocks."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from skep_cli.doorman import Doorman
from skep_policy import Decision, Rules
from skep_proxy import Proxy
from skep_proxy.testing import Recorder

PROXY = '{"kind": "proxy", "address": "127.0.0.1", "port": %d}'
DNS = '{"kind": "dns", "address": "127.0.0.1", "port": %d}'
# One question, of type A, for www.example.com (RFC 1035, 4.1).
QUESTION = b"ab\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03www\x07example\x03com\x00\x00\x01\x00\x01"


class Sandbox:
    """Its end of the connection, and what it hands over."""

    def __init__(self) -> None:
        self.theirs, self.ours = socket.socketpair()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.names.bind(("127.0.0.1", 0))

    def hand_over(self) -> None:
        for text, sock, more in ((PROXY, self.listener, ', "more": true'), (DNS, self.names, "")):
            entry = text % sock.getsockname()[1]
            line = f'SKEP-HANDOFF 1 {{"listen": [{entry}]{more}}}\n'
            socket.send_fds(self.theirs, [line.encode()], [sock.fileno()])
        assert self.theirs.recv(16) == b"go\n"

    def leave(self) -> None:
        """As when its namespaces are gone: nobody but the doorman has the sockets."""
        self.listener.close()
        self.names.close()

    def close(self) -> None:
        for sock in (self.theirs, self.ours, self.listener, self.names):
            sock.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def answer_of(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=60) as client:
        return client.recv(1)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_without_a_knock_no_proxy_is_started_and_nothing_is_left_open(sandbox: Sandbox) -> None:
    asked: list[int] = []
    before = descriptors()
    doorman = Doorman(sandbox.ours, asked.append)
    sandbox.hand_over()
    doorman.close()
    assert asked == []
    assert descriptors() == before - 1  # the connection, which is the doorman's


def test_a_doorman_whose_sandbox_never_came_up_ends(sandbox: Sandbox) -> None:
    asked: list[int] = []
    doorman = Doorman(sandbox.ours, asked.append)
    sandbox.theirs.close()
    doorman.close()
    assert asked == []


@pytest.mark.parametrize("knock", ["connects", "asks for a name and is gone"])
def test_who_knocks_is_answered_by_the_proxy_and_is_on_record(knock: str, sandbox: Sandbox) -> None:
    recorder = Recorder()
    with Proxy(on_event=recorder) as proxy:
        doorman = Doorman(sandbox.ours, lambda fd: proxy.adopt(socket.socket(fileno=fd), Rules.build()))
        port = sandbox.names.getsockname()[1]
        sandbox.hand_over()
        if knock == "connects":
            with socket.create_connection(sandbox.listener.getsockname(), timeout=60) as client:
                client.sendall(b"CONNECT www.example.com:443 HTTP/1.1\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 403 ")
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(QUESTION, ("127.0.0.1", port))
        doorman.close()
    denied = [event.host for event in recorder.events if isinstance(event, Decision)]
    assert denied == ["www.example.com"]


def test_where_no_proxy_can_be_started_the_kernel_refuses_at_once(sandbox: Sandbox) -> None:
    def fail(fd: int) -> None:
        os.close(fd)
        raise OSError("no descriptor left")

    address = sandbox.listener.getsockname()
    doorman = Doorman(sandbox.ours, fail)
    sandbox.hand_over()
    sandbox.leave()
    with pytest.raises(ConnectionError):
        answer_of(address)  # the kernel's backlog takes it, until the last copy of the listener is closed
    doorman.close()
