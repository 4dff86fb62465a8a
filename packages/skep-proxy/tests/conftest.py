from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pytest
from skep_policy import Rules
from skep_proxy import Limits, Proxy, Upstream
from skep_proxy.engine import OnEvent
from skep_proxy.resolver import Resolve
from skep_proxy.testing import Handler, Origin, Recorder, Table, wait_until

T = TypeVar("T")


class Setup:
    """A proxy on loopback with a table of names, and clients that are closed at the end."""

    def __init__(
        self,
        *,
        on_event: OnEvent | None = None,
        resolve: Resolve | None = None,
        limits: Limits | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.events = Recorder()
        self.table = Table()
        self.names = self.table.names
        self.proxy = Proxy(
            on_event=on_event or self.events,
            resolve=resolve or self.table,
            limits=limits,
            upstream=upstream,
        )
        self.address: tuple[str, int] = ("", 0)
        self._clients: list[socket.socket] = []

    def listen(self, *allow: str, host: str = "127.0.0.1", **rules: Any) -> Setup:
        """Every name may go to private addresses unless `private` says otherwise: the origins of tests are on
        loopback.
        """
        rules.setdefault("private", ["*"])
        self.address = self.proxy.listen_tcp(host, 0, Rules.build(allow=allow, **rules))
        return self

    def client(self, data: bytes = b"") -> socket.socket:
        """A connection to the proxy on which `data` was sent."""
        sock = socket.create_connection(self.address, 60)
        self._clients.append(sock)
        if data:
            sock.sendall(data)
        return sock

    def connect(self, target: str, early: bytes = b"") -> socket.socket:
        """A connection on which a tunnel was asked for; the response has not been read."""
        return self.client(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode() + early)

    def tunnel(self, target: str, early: bytes = b"") -> socket.socket:
        """A tunnel that stands."""
        sock = self.connect(target, early)
        granted = b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert sock.recv(len(granted)) == granted
        return sock

    def close(self) -> None:
        for sock in self._clients:
            sock.close()
        self.proxy.close()


class Serve(Protocol):
    def __call__(self, handler: Handler | None = None, *, host: str = "127.0.0.1", body: bytes = b"") -> Origin: ...


class Make(Protocol):
    def __call__(
        self,
        *,
        on_event: OnEvent | None = None,
        resolve: Resolve | None = None,
        limits: Limits | None = None,
        upstream: Upstream | None = None,
    ) -> Setup: ...


@contextmanager
def reserved_port() -> Generator[int]:
    """A port of loopback at which nobody listens but who asks for this very one: the system gives it to nobody else."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a server, which sets it too, may have it
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


def refused(address: tuple[str, int]) -> bool:
    """Nobody listens there any more."""
    try:
        socket.create_connection(address, 60).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False  # between the two
    return False


def in_time(attempt: Callable[[], T]) -> T:
    """What comes of the attempt, which is made again when it fails: a limit that is short for a test's sake may run out
    on a busy machine before the client has said what it has to say.
    """
    for _ in range(20):
        try:
            return attempt()
        except (AssertionError, OSError):
            pass
    return attempt()


def descriptors() -> list[str]:
    """What every open descriptor of this process is."""
    found: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return sorted(found)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    before = len(descriptors())
    yield
    wait_until(lambda: len(descriptors()) <= before)
    assert len(descriptors()) <= before, descriptors()


@pytest.fixture
def serve(nothing_leaks: None) -> Iterator[Serve]:
    """`serve(handler)` is an origin on loopback."""
    origins: list[Origin] = []

    def make(handler: Handler | None = None, *, host: str = "127.0.0.1", body: bytes = b"origin ok\n") -> Origin:
        origins.append(Origin(handler, host=host, body=body))
        return origins[-1]

    yield make
    for origin in origins:
        origin.close()


@pytest.fixture
def origin(serve: Serve) -> Origin:
    return serve()


@pytest.fixture
def make(nothing_leaks: None) -> Iterator[Make]:
    """`make(**options of Proxy)` is a proxy that must end without a fault of its own."""
    setups: list[Setup] = []

    def build(
        *,
        on_event: OnEvent | None = None,
        resolve: Resolve | None = None,
        limits: Limits | None = None,
        upstream: Upstream | None = None,
    ) -> Setup:
        setups.append(Setup(on_event=on_event, resolve=resolve, limits=limits, upstream=upstream))
        return setups[-1]

    yield build
    for setup in setups:
        setup.close()
        assert setup.proxy.stats().faults == 0
        assert setup.proxy.stats().connections == 0


@pytest.fixture
def setup(make: Make) -> Setup:
    return make()


@pytest.fixture
def hasty(make: Make) -> Setup:
    """Times so short that they may run out before a client of a busy machine has said anything (see `in_time`)."""
    return make(limits=Limits(handshake=0.2, dial=0.5, keep_alive=0.3, linger=0.2))


@pytest.fixture
def small(make: Make) -> Setup:
    """Heads are short."""
    return make(limits=Limits(head=8192))
