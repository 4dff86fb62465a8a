"""Accepting on listeners that someone else may still hold.

Whether accept() blocks is a property of the open file, which every holder of a copy can change at any moment. A
listener that came over a mounted Unix socket may have come from the worker itself, so a thread of its own accepts on
it: what blocks there holds up its own sandbox and nobody else. Listeners of a shim that we started (`Proxy.connect`)
have no other holder once the worker runs.
"""

from __future__ import annotations

import errno
import select
import socket
from functools import partial
from threading import Event, Semaphore, Thread

from .engine import RETRY, Engine
from .scope import Scope
from .session import Session

_SHORTAGE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

IN_FLIGHT = 16
"""Connections accepted of which the engine does not know yet: so many may be beyond a limit."""

JOIN = 1.0
"""Seconds that the end of the proxy waits for the thread. Shutting a listener down wakes it at once."""


class Acceptor:
    """One hand-over's stream listeners. The sockets are its own, and so is the thread that accepts on them."""

    def __init__(self, engine: Engine, scope: Scope, listeners: list[tuple[socket.socket, bool]]) -> None:
        """`listeners` are (socket, transparent)."""
        self._engine = engine
        self._scope = scope
        self._listeners = {sock.fileno(): (sock, transparent) for sock, transparent in listeners}
        self._closed = Event()
        self._in_flight = Semaphore(IN_FLIGHT)
        self._thread = Thread(target=self._run, name="skep-proxy acceptor", daemon=True)
        self._thread.start()
        engine.acceptors.add(self)

    def join(self) -> None:
        """Wait for the thread to be gone, which closes the sockets. Not while the engine has others to serve."""
        self._thread.join(JOIN)

    def abort(self) -> None:
        """Nothing is accepted any more; the thread closes the sockets and ends, in its own time."""
        if self._closed.is_set():
            return
        self._closed.set()
        for sock, _ in self._listeners.values():
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _run(self) -> None:
        poller = select.poll()
        for fd in self._listeners:
            poller.register(fd, select.POLLIN)
        waiting = set(self._listeners)
        while waiting and not self._closed.is_set():
            for fd, _ in poller.poll():
                if self._closed.is_set() or not self._accept(*self._listeners[fd]):
                    poller.unregister(fd)
                    waiting.discard(fd)
        self._closed.wait()
        for sock, _ in self._listeners.values():
            sock.close()
        self._engine.loop.submit(partial(self._engine.acceptors.discard, self))

    def _accept(self, listener: socket.socket, transparent: bool) -> bool:
        """False when nothing will ever come from this listener."""
        engine = self._engine
        while not self._in_flight.acquire(timeout=RETRY):
            if self._closed.is_set():
                return False
        while engine.full(self._scope) and not self._closed.wait(RETRY):
            pass
        try:
            client, _ = listener.accept()
        except BlockingIOError:
            self._in_flight.release()
            return True
        except OSError as error:
            self._in_flight.release()
            if error.errno in _SHORTAGE:
                self._closed.wait(RETRY)
            return error.errno != errno.EINVAL
        client.setblocking(False)
        if not engine.loop.submit(partial(self._take, client, transparent)):
            client.close()
        return True

    def _take(self, client: socket.socket, transparent: bool) -> None:
        """On the engine's thread."""
        self._in_flight.release()
        if self._closed.is_set():
            client.close()
            return
        session = Session(self._engine, self._scope, client, tcp=client.family != socket.AF_UNIX)
        self._engine.loop.call(session.start_transparent if transparent else session.start)
