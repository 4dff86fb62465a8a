"""The last bytes to a client that is refused."""

from __future__ import annotations

import socket

from .engine import Engine
from .flow import COPY, linger_reset
from .loop import READ
from .scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .scope import Live

DRAIN = 1 << 20
"""Bytes read and dropped from a client that is still sending after it was refused."""


class Farewell:
    """Owns a registered client's socket from `start` on, instead of `owner`. What the client is still sending is read
    and dropped for a moment: closing with unread bytes would send a reset, and the client might lose the answer.
    """

    __slots__ = ("client", "closed", "drained", "engine", "scope")

    def __init__(self, engine: Engine, scope: Scope, client: socket.socket) -> None:
        self.engine = engine
        self.scope = scope
        self.client = client
        self.drained = 0
        self.closed = False

    def start(self, data: bytes, *, owner: Live) -> None:
        """`data` are the last bytes to this client."""
        engine = self.engine
        engine.passed_on(self.scope, owner, self)
        try:
            if data:
                self.client.send(data)
            self.client.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        engine.lingering.add(self, self.close)
        engine.loop.handle(self.client.fileno(), self._on_drain)
        self._on_drain(READ)

    def _on_drain(self, _mask: int) -> None:
        try:
            while data := self.client.recv(COPY):
                self.drained += len(data)
                if self.drained > DRAIN:
                    break
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def abort(self) -> None:
        """Cut, with a reset."""
        if not self.closed:
            linger_reset(self.client)
        self.close()

    def close(self) -> None:
        """The client's socket is closed; once."""
        if self.closed:
            return
        self.closed = True
        self.engine.lingering.drop(self)
        self.engine.loop.forget(self.client.fileno())
        self.client.close()
        self.engine.closed(self.scope, self)
