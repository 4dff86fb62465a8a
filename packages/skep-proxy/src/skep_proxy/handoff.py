r"""Listeners made inside a sandbox, handed to the proxy, and accepted on from outside.

    client -> proxy   SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "127.0.0.1", "port": 3128}, ...]}\n
                      with the sockets as SCM_RIGHTS, in the same order; kinds are proxy, tcp (transparent) and dns;
                      "more": true when another such message follows
    proxy -> client   go\n            every listener is accepted on
                      refused REASON\n  and the connection is closed

Lifetime: the listeners, and every connection that came by them, end with the handing connection.

What arrives is not believed: each descriptor must be a listening stream socket (a bound UDP one for "dns"), and the
address that counts is the socket's own. See `acceptor` for what a peer could do with a copy it kept.
"""

from __future__ import annotations

import json
import os
import socket

from skep_policy.value import Value

from .acceptor import Acceptor
from .engine import Engine, tune
from .listener import Datagrams, Listener
from .loop import READ
from .passing import MAGIC, MAX_FDS, Refused, close_all, receive
from .scope import Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

MAX_LINE = 1 << 16
"""Bytes of one message."""

MAX_LISTENERS = 4096
"""Of one handing connection."""

MAX_HANDOFFS = 256
"""By one Unix listener at a time: a thread accepts for each (see `acceptor`). The listeners count like connections."""


class Entry(Value):
    kind: Literal["proxy", "tcp", "dns"]
    address: str
    port: int


class Offer(Value):
    listen: list[Entry]
    more: bool = False


def parse_offer(line: bytes) -> Offer:
    """One message without its line end. Raises Refused."""
    try:
        said = json.loads(line.removeprefix(MAGIC))
        entries = [Entry(entry["kind"], entry["address"], entry["port"]) for entry in said["listen"]]
        offer = Offer(entries, said.get("more", False))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"not a hand-over: {error}") from None
    fits = all(
        entry.kind in ("proxy", "tcp", "dns") and type(entry.address) is str and type(entry.port) is int
        for entry in entries
    )
    if not fits or type(offer.more) is not bool:
        raise Refused("not a hand-over: a listener has a kind, an address and a port")
    return offer


def adopt(fd: int, kind: str) -> socket.socket:
    """A Python socket for a handed-over descriptor, which it owns. Raises Refused, and the descriptor is closed."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise Refused("a descriptor that is no socket") from None
    internet = sock.family in (socket.AF_INET, socket.AF_INET6)
    try:
        if kind == "dns":
            fits = internet and sock.type == socket.SOCK_DGRAM
        else:
            listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            fits = bool(listening) and (internet or (kind == "proxy" and sock.family == socket.AF_UNIX))
    except OSError:
        fits = False
    if not fits:
        sock.close()
        raise Refused(f"a socket that cannot serve as {kind}")
    sock.setblocking(False)
    return sock


class Handoff:
    """One handing connection and what came by it."""

    __slots__ = ("buffer", "closed", "count", "engine", "fds", "listeners", "scope", "sock", "stopped", "trusted")

    def __init__(self, engine: Engine, scope: Scope, sock: socket.socket, *, trusted: bool) -> None:
        """`trusted`: whoever is at the other end keeps no copy of what it hands over."""
        self.engine = engine
        self.scope = scope
        self.sock = sock
        self.buffer = b""
        self.fds: list[int] = []
        self.listeners: list[Listener | Datagrams | Acceptor] = []
        self.trusted = trusted
        self.count = 0
        self.closed = False
        self.stopped = False
        engine.handoffs.add(self)
        scope.root.handoffs += 1

    def start(self) -> None:
        """Serve the connection, on the loop's thread."""
        if not self.closed:
            self.engine.loop.register(self.sock.fileno(), self._on_ready)

    def take_over(self, data: bytes, fds: list[int]) -> None:
        """Continue with a registered connection of which something has been read."""
        self.engine.loop.handle(self.sock.fileno(), self._on_ready)
        self.buffer, self.fds = data, fds
        self.engine.loop.call(self._go_on)

    def _on_ready(self, mask: int) -> None:
        if mask & READ:
            self._go_on()

    def _go_on(self) -> None:
        try:
            self._advance()
            while not self.closed:
                data, fds = receive(self.sock, MAX_LINE)
                if not data:
                    self.abort()
                    return
                self.buffer += data
                self.fds += fds
                self._advance()
        except BlockingIOError:
            pass
        except Refused as refused:
            self._refuse(refused)
        except OSError:
            self.abort()

    def _advance(self) -> None:
        while b"\n" in self.buffer:
            line, _, self.buffer = self.buffer.partition(b"\n")
            if not line.startswith(MAGIC):
                raise Refused("not a hand-over")
            self._take(parse_offer(line))
        if len(self.buffer) > MAX_LINE or len(self.fds) > MAX_FDS:
            raise Refused("a message that is too long")

    def _take(self, offer: Offer) -> None:
        if len(offer.listen) > len(self.fds):
            raise Refused(f"{len(offer.listen)} listeners named, {len(self.fds)} descriptors sent")
        if self.count + len(offer.listen) > MAX_LISTENERS:
            raise Refused(f"more than {MAX_LISTENERS} listeners")
        if self.stopped:
            raise Refused("no new clients are served here")
        self.count += len(offer.listen)
        self.engine.hold(self.scope, len(offer.listen))
        if not self.trusted and (self.scope.root.handoffs > MAX_HANDOFFS or not self.engine.room(self.scope, 0)):
            raise Refused("too many connections and listeners by this socket")
        shared: list[tuple[socket.socket, bool]] = []
        try:
            for entry in offer.listen:
                sock = adopt(self.fds.pop(0), entry.kind)
                tune(sock)
                if entry.kind != "dns" and not self.trusted:
                    shared.append((sock, entry.kind == "tcp"))
                else:
                    self._serve(sock, entry.kind)
        except Refused:
            for sock, _ in shared:
                sock.close()
            raise
        if shared:
            self.listeners.append(Acceptor(self.engine, self.scope, shared))
        if not offer.more:
            if self.fds:
                raise Refused(f"{len(self.fds)} descriptors more than listeners named")
            self.sock.send(b"go\n")

    def _serve(self, sock: socket.socket, kind: str) -> None:
        listener: Listener | Datagrams
        if kind == "dns":
            listener = Datagrams(self.engine, self.scope, sock)
        else:
            listener = Listener(self.engine, self.scope, sock, transparent=kind == "tcp")
        self.listeners.append(listener)
        listener.start()

    def _refuse(self, refused: Refused) -> None:
        try:
            self.sock.send(f"refused {refused}\n".encode("ascii", "replace"))
        except OSError:
            pass
        self.abort()

    def stop_accepting(self) -> None:
        """Its listeners are closed and no others are taken; connections that came by them go on."""
        self.stopped = True
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.abort()

    def abort(self) -> None:
        """The connection, its listeners and every connection that came by them are closed; once."""
        if self.closed:
            return
        self.closed = True
        close_all(self.fds)
        self.stop_accepting()
        self.scope.abort()
        self.scope.root.handoffs -= 1
        self.engine.hold(self.scope, -self.count)
        self.engine.loop.unregister(self.sock.fileno())
        self.sock.close()
        self.engine.handoffs.discard(self)
        self.engine.scopes.discard(self.scope)
