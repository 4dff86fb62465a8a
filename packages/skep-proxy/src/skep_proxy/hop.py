"""Asking an upstream proxy for a tunnel."""

from __future__ import annotations

import socket

from skep_policy import Verdict

from .ask import MAX_HEAD, Refused, ask
from .dial import Attempt, Dialer, Failure
from .loop import READ
from .upstream import Hop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dial import Owner


class HopTunnel:
    """Dials the upstream proxy for an owner and asks it; the owner gets the socket when the tunnel stands."""

    __slots__ = ("_ask", "_attempt", "_dialer", "_hop", "_owner", "_sock", "over")

    def __init__(self, dialer: Dialer, hop: Hop, host: str, port: int, owner: Owner) -> None:
        self._dialer = dialer
        self._hop = hop
        self._ask = ask(hop, host, port)
        self._owner = owner
        self._attempt: Attempt | None = None
        self._sock: socket.socket | None = None
        self.over = False

    def start(self, verdict: Verdict) -> None:
        attempt = self._dialer.attempt(self._hop.host, self._hop.port, verdict, None, self)
        if not self.over:
            self._attempt = attempt

    @property
    def asker(self) -> object:
        return self._hop  # the operator's own proxy

    def approve(self, verdict: Verdict) -> bool:
        return self._owner.approve(verdict)

    def connected(self, upstream: socket.socket, hop: Hop | None) -> None:
        self._attempt = None
        self._sock = upstream
        try:
            upstream.send(self._ask.first)
        except OSError as error:
            self._fail(f"hung up: {error.strerror}")
            return
        self._dialer.patience.add(self, self._too_late)
        self._dialer.loop.register(upstream.fileno(), self._on_answer)

    def failed(self, failure: Failure) -> None:
        self.over = True
        self._owner.failed(failure)

    def _on_answer(self, mask: int) -> None:
        sock = self._sock
        if sock is None or not mask & READ:
            return
        try:
            while True:
                # Looked at first, so that not one byte of the tunnel behind the answer is taken out of the socket.
                seen = sock.recv(MAX_HEAD, socket.MSG_PEEK)
                if not seen:
                    self._fail("hung up")
                    return
                say = self._ask.feed(sock.recv(self._ask.wanted(seen)))
                if say is None:
                    break
                if say:
                    sock.send(say)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"hung up: {error.strerror}")
            return
        except Refused as refused:
            self._fail(str(refused))
            return
        self._dialer.loop.unregister(sock.fileno())
        self._sock = None
        self.abort()
        self._owner.connected(sock, None)

    def _too_late(self) -> None:
        self._fail("did not answer in time", status=504)

    def _fail(self, what: str, *, status: int = 502) -> None:
        self.abort()
        where = f"{self._hop.host}:{self._hop.port}"
        told = f"the upstream proxy {what}"
        self._owner.failed(Failure(status, "upstream-proxy", f"the upstream proxy {where} {what}", told))

    def fault(self) -> None:
        """Of ours: the owner is cut as well."""
        self.abort()
        self._owner.abort()

    def abort(self) -> None:
        """Nothing is open or waited for any more, and the owner hears nothing."""
        self.over = True
        self._dialer.patience.drop(self)
        if self._attempt is not None:
            self._attempt.abort()
        if self._sock is not None:
            self._dialer.loop.forget(self._sock.fileno())
            self._sock.close()
            self._sock = None
