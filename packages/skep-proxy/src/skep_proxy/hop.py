"""Asking an upstream proxy for a tunnel."""

from __future__ import annotations

import socket

from skep_policy import Verdict

from . import http1
from .dial import Attempt, Dialer, Failure, Owner
from .loop import READ
from .upstream import Hop

MAX_HEAD = 16384
"""Bytes of the upstream proxy's answer."""


class HopTunnel:
    """Dials the upstream proxy for an owner and sends CONNECT; the owner gets the socket when the tunnel stands."""

    __slots__ = ("_attempt", "_dialer", "_head", "_hop", "_owner", "_sock", "_where", "over")

    def __init__(self, dialer: Dialer, hop: Hop, host: str, port: int, owner: Owner) -> None:
        self._dialer = dialer
        self._hop = hop
        self._head = b""
        self._where = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
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
        ask = b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (self._where, self._where, self._hop.field)
        try:
            upstream.send(ask)
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
                # Looked at first, so that not one byte of the tunnel behind the head is taken out of the socket.
                seen = sock.recv(MAX_HEAD, socket.MSG_PEEK)
                before = len(self._head)
                end = http1.head_end(self._head + seen, before)
                self._head += sock.recv(end - before if end >= 0 else len(seen))
                if end >= 0 and len(self._head) <= MAX_HEAD:
                    break
                if not seen or len(self._head) > MAX_HEAD:
                    self._fail("sent an endless answer" if seen else "hung up")
                    return
            response = http1.parse_response(self._head)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(f"hung up: {error.strerror}")
            return
        except http1.BadMessage as bad:
            self._fail(f"answered something that is not HTTP: {bad.problem}")
            return
        if not 200 <= response.status < 300:
            self._fail(f"answered {response.status} {response.phrase.decode('latin-1')}".rstrip())
            return
        self._dialer.loop.unregister(sock.fileno())
        self._sock = None
        self.abort()
        self._owner.connected(sock, self._hop)

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
