"""For tests of what stands on the proxy: an origin on loopback that says what it was asked, and a recorder of events.

with Origin() as origin, Proxy(on_event=(events := Recorder()), resolve=Table({"good.test": "127.0.0.1"})) as proxy:
    rules = Rules.build(allow=[f"good.test:{origin.port}"], private=["good.test"])
    host, port = proxy.listen_tcp("127.0.0.1", 0, rules)
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from skep_policy import Closed, Decision, EgressEvent

Handler = Callable[[socket.socket], None]

PATIENCE = 60.0
"""Seconds that `Recorder.wait` and an origin's sockets wait for what does not come, however busy the machine is."""


class Recorder:
    """An `on_event` that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[EgressEvent] = []
        self._changed = threading.Condition()

    def __call__(self, event: EgressEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    @property
    def decisions(self) -> list[Decision]:
        return [event for event in list(self.events) if isinstance(event, Decision)]

    @property
    def closed(self) -> list[Closed]:
        return [event for event in list(self.events) if isinstance(event, Closed)]

    def allowed(self) -> list[tuple[str, int]]:
        return [(event.host, event.port) for event in self.decisions if event.verdict.allow]

    def denied(self) -> list[tuple[str, int, str]]:
        return [(event.host, event.port, event.verdict.reason) for event in self.decisions if not event.verdict.allow]

    def wait(self, condition: Callable[[Recorder], bool], seconds: float = PATIENCE) -> bool:
        """True as soon as the condition holds, False when it does not within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), seconds)


class Origin:
    """A server on loopback; `handler` gets each accepted socket on a thread of its own and need not close it.

    Without a handler it answers every HTTP request with `body`, and keeps the heads it read in `heads`.
    """

    def __init__(
        self, handler: Handler | None = None, *, host: str = "127.0.0.1", body: bytes = b"origin ok\n"
    ) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._handler = handler or self._answer
        self._body = body
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, 0))
        self._listener.listen(1024)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Origin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def requests(self) -> list[tuple[str, str]]:
        """(method, target) of every request."""
        lines = [head.split(b"\r\n", 1)[0].decode("latin-1").split(" ") for head in self.heads]
        return [(line[0], line[1]) for line in lines]

    def close(self) -> None:
        """Nothing listens any more, every connection is closed."""
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._thread.join()
        self._listener.close()
        for sock in list(self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                sock.settimeout(PATIENCE)
                self._handler(sock)
        except OSError:
            pass  # the other side went away
        finally:
            self._open.discard(sock)

    def _answer(self, sock: socket.socket) -> None:
        while head := read_head(sock):
            self.heads.append(head)
            length = len(self._body)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, self._body))
            if b" HTTP/1.0\r\n" in head:
                return


def read_head(sock: socket.socket) -> bytes:
    """Bytes up to and with the first empty line, or up to the end of the stream."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return head
        head += byte
    return head


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """That many bytes; fewer at the end of the stream."""
    parts: list[bytes] = []
    while count > 0:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_all(sock: socket.socket) -> bytes:
    """Everything up to the end of the stream."""
    parts: list[bytes] = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


class Table:
    """A `resolve` that knows the names of a dictionary and no others, and keeps those it was asked for."""

    def __init__(self, names: Mapping[str, str | list[str]] | None = None) -> None:
        self.names: dict[str, str | list[str]] = dict(names or {})
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        found = self.names.get(host)
        if found is None:
            raise OSError(f"{host} is not in the table")
        return [found] if isinstance(found, str) else list(found)


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """True as soon as the condition holds, False when it does not within that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
