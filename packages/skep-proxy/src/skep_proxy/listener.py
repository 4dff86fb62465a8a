"""Sockets that clients come to: accept until the kernel has no more, answer datagrams until there are none."""

from __future__ import annotations

import errno
import socket
from functools import partial

from . import dns
from .engine import Engine
from .loop import READ, Deadlines
from .scope import Scope
from .session import Session

TURN = 256
"""Connections accepted, or datagrams answered, before others get their turn."""

_SHORTAGE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_CMSG_SPACE = 128
_IP_PKTINFO = 8  # linux/in.h; the socket module has it from 3.12 on
_IPV6_FREEBIND = 78  # linux/in6.h


class Listener:
    """A listening socket. Pauses at the connection limit and when descriptors run out, and never spins."""

    __slots__ = ("closed", "engine", "path", "retry", "scope", "sock", "tcp", "transparent", "waiting")

    def __init__(self, engine: Engine, scope: Scope, sock: socket.socket, *, transparent: bool) -> None:
        self.engine = engine
        self.scope = scope
        self.sock = sock
        self.tcp = sock.family != socket.AF_UNIX
        self.transparent = transparent
        self.waiting = False
        self.closed = False
        self.path: tuple[str, int, int] | None = None
        """Of a Unix socket that is removed with the listener: path, device, inode."""
        self.retry: Deadlines = engine.retries

    def start(self) -> None:
        if not self.closed:
            self.engine.loop.register(self.sock.fileno(), self._on_ready)

    def _on_ready(self, _mask: int) -> None:
        if not self.waiting:
            self._accept()

    def _resume(self) -> None:
        if self.waiting and not self.closed:
            self.waiting = False
            self._accept()

    def _accept(self) -> None:
        engine = self.engine
        for _ in range(TURN):
            if engine.full(self.scope):
                self._pause()
                return
            try:
                client, _address = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORTAGE:
                    self._pause()
                    self.retry.add(self, self._resume)
                    return
                if error.errno == errno.EINVAL:
                    return  # no longer listening: whoever handed it over has shut it down
                continue  # a client that gave up before it was accepted
            client.setblocking(False)
            session = Session(engine, self.scope, client, tcp=self.tcp)
            engine.loop.call(session.start_transparent if self.transparent else session.start)
        self.waiting = True
        engine.loop.soon(self._resume)

    def _pause(self) -> None:
        self.waiting = True
        self.engine.paused.append(self._resume)

    def abort(self) -> None:
        """Closed: new clients are refused by the kernel."""
        self.closed = True
        self.retry.drop(self)
        self.engine.loop.unregister(self.sock.fileno())
        self.sock.close()


class Datagrams:
    """A UDP socket on which names are asked for."""

    __slots__ = ("closed", "control", "desk", "engine", "path", "scope", "sock")

    def __init__(self, engine: Engine, scope: Scope, sock: socket.socket) -> None:
        self.engine = engine
        self.scope = scope
        self.sock = sock
        self.path: tuple[str, int, int] | None = None
        self.closed = False
        self.desk = dns.Desk(scope.names)
        self.control = _ask_for_destination(sock)

    def start(self) -> None:
        if not self.closed:
            self.engine.loop.register(self.sock.fileno(), self._on_ready)

    def _on_ready(self, mask: int) -> None:
        if mask & READ:
            self._answer()

    def _answer(self) -> None:
        for _ in range(TURN):
            if self.closed:
                return
            try:
                query, control, _flags, client = self.sock.recvmsg(dns.MAX_QUERY, _CMSG_SPACE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                continue  # an ICMP error about an earlier answer
            answer = self.desk.answer(query, self.scope.rules, now=self.engine.loop.now)
            if answer.denied is not None:
                self.engine.decided(answer.denied.host, answer.denied.port, "dns", answer.denied.verdict)
            if answer.message:
                try:
                    self.sock.sendmsg([answer.message], control if self.control else [], socket.MSG_DONTWAIT, client)
                except OSError:
                    pass  # the client asks again
        self.engine.loop.soon(partial(self._on_ready, READ))

    def fault(self) -> None:
        """A question that we fail at is dropped; the others are answered."""
        self.engine.loop.soon(partial(self._on_ready, READ))

    def abort(self) -> None:
        self.closed = True
        self.engine.loop.unregister(self.sock.fileno())
        self.sock.close()


def _ask_for_destination(sock: socket.socket) -> bool:
    """A wildcard socket must answer from the address it was asked at, or the client drops the answer."""
    try:
        if sock.getsockname()[0] == "0.0.0.0":
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            return True
        if sock.getsockname()[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)  # an AnyIP address is not one of an interface
            return True
    except OSError:
        pass
    return False
