"""What every conversation of one proxy shares: the loop, pipes, the dialer, limits, and the record of what was decided.

An event that cannot be recorded fails closed: `record` says so, and whoever asked refuses the connection.
"""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable
from time import time

from skep_policy import Closed, Decision, EgressEvent, Rules, Verdict
from skep_policy.value import Record

from .auth import Token
from .dial import Dialer
from .limits import Limits
from .loop import Loop
from .pipes import Pipes
from .resolver import Resolve, Resolver, getaddrinfo
from .scope import Scope
from .upstream import Upstream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from .scope import Live

KEEPALIVE = 60
"""Seconds of silence before the kernel asks whether the other end is still there.

A client that is killed looks like one that has only stopped sending, until something is sent to it. When its server
says nothing and does not end either, this is what ends the tunnel: the kernel forgets a closed socket after
net.ipv4.tcp_fin_timeout (60 s), and answers the next question with a reset.
"""

PROBE = 15
"""Seconds between such questions while none is answered."""

RETRY = 0.1
"""Seconds until accept is tried again when descriptors ran out and no connection of ours has ended."""

SPARE = 64
"""Descriptors that connections leave to everything else of the process."""

FEWEST = 16
"""Connections at a time, however few descriptors there are."""

_KEEP_IDLE: int | None = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
_KEEP_INTERVAL: int | None = getattr(socket, "TCP_KEEPINTVL", None)

OnEvent = Callable[[EgressEvent], None]


if TYPE_CHECKING:

    class Offering(Live, Protocol):
        """A connection by which listeners came."""

        scope: Scope

        def stop_accepting(self) -> None: ...


if TYPE_CHECKING:

    class Accepting(Protocol):
        """A thread that accepts on what was handed over."""

        def join(self) -> None: ...


class Stats(Record):
    """Counters since the start, and gauges. A copy; never changes."""

    accepted: int = 0
    connections: int = 0
    tunnels: int = 0
    allowed: int = 0
    denied: dict[str, int] = {}
    bytes_in: int = 0
    bytes_out: int = 0
    failures: dict[str, int] = {}
    unrecorded: int = 0
    faults: int = 0


class Engine:
    """Lives on the loop's thread; see `Proxy` for what other threads may call."""

    def __init__(
        self,
        *,
        on_event: OnEvent | None,
        limits: Limits,
        resolve: Resolve = getaddrinfo,
        upstream: Upstream | None = None,
    ) -> None:
        self.loop = Loop()
        self.most = min(limits.connections, max(FEWEST, (descriptors() - SPARE) // 2))
        """Connections at a time: each has two descriptors when it stands."""
        self.limits = limits
        self.pipes = Pipes()
        self.resolver = Resolver(self.loop, resolve)
        self.dialer = Dialer(self.loop, self.resolver, seconds=limits.dial, upstream=upstream)
        self.handshakes = self.loop.deadlines(limits.handshake)
        self.idle = self.loop.deadlines(limits.keep_alive)
        self.lingering = self.loop.deadlines(limits.linger)
        self.retries = self.loop.deadlines(RETRY)
        self.stats = Stats()
        self.paused: list[Callable[[], None]] = []
        """Listeners that wait for a connection to end before they accept again."""
        self.scopes: set[Scope] = set()
        """Every scope that decides, so that rules can be replaced."""
        self.handoffs: set[Offering] = set()
        self.acceptors: set[Accepting] = set()
        """Those whose thread has not ended yet."""
        self._on_event = on_event

    def scope(self, rules: Rules, *, parent: Scope | None = None, token: Token | None = None) -> Scope:
        """A new scope, known to `replace_rules`."""
        scope = Scope(rules, parent=parent, token=token)
        self.scopes.add(scope)
        return scope

    def full(self, scope: Scope) -> bool:
        """True when another connection has to wait until one has ended."""
        return self.stats.connections >= self.most or not self.room(scope, 1)

    def room(self, scope: Scope, count: int) -> bool:
        """True when the listener behind a scope may hold that many connections and listeners more."""
        return scope.root.connections + count <= self.limits.connections_each

    def hold(self, scope: Scope, count: int) -> None:
        """As many handed-over listeners count like connections; negative when they are gone."""
        scope.root.connections += count
        if count < 0:
            self._resume()

    def opened(self, scope: Scope, live: Live) -> None:
        self.stats.connections += 1
        self.stats.accepted += 1
        scope.root.connections += 1
        scope.live.add(live)

    def passed_on(self, scope: Scope, live: Live, to: Live) -> None:
        """The same client connection has another owner."""
        scope.live.discard(live)
        scope.live.add(to)

    def closed(self, scope: Scope, live: Live) -> None:
        if live not in scope.live:
            return
        scope.live.discard(live)
        scope.root.connections -= 1
        self.stats.connections -= 1
        self._resume()

    def _resume(self) -> None:
        if self.paused:
            paused, self.paused = self.paused, []
            for resume in paused:
                self.loop.soon(resume)

    def decided(self, host: str, port: int, via: str, verdict: Verdict) -> bool:
        """The decision is on record. False: it could not be written, and must be taken as a denial."""
        if verdict.allow:
            self.stats.allowed += 1
        else:
            self.stats.denied[verdict.reason] = self.stats.denied.get(verdict.reason, 0) + 1
        return self._on_event is None or self._record(self._on_event, Decision(time(), host, port, via, verdict))

    def ended(
        self,
        host: str,
        port: int,
        via: str,
        bytes_in: int,
        bytes_out: int,
        error: str | None,
        *,
        unreached: str | None = None,
    ) -> None:
        """An allowed connection or request is over. `unreached` says why it never began."""
        self.stats.bytes_in += bytes_in
        self.stats.bytes_out += bytes_out
        if error is not None:
            self.stats.failures[error] = self.stats.failures.get(error, 0) + 1
        if self._on_event is not None:
            event = Closed(time(), host, port, via, bytes_in, bytes_out, error, unreached)
            self._record(self._on_event, event)

    def _record(self, on_event: OnEvent, event: EgressEvent) -> bool:
        try:
            on_event(event)
        except Exception:  # whatever the callback's storage raises; it must not take the engine down
            self.stats.unrecorded += 1
            return False
        return True

    def close(self) -> None:
        """Every descriptor of the engine is closed. After the loop has ended."""
        for acceptor in list(self.acceptors):
            acceptor.join()
        self.resolver.close()
        self.dialer.close()
        self.pipes.close()
        self.loop.close()


def descriptors() -> int:
    """How many this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def load_everything() -> None:
    """Every module that a conversation may want is loaded: when descriptors have run out, none can be. Raises OSError
    and ImportError then. But not idna, as large as all the rest: a name that needs it is refused then.
    """
    for name in ("ipaddress", "skep_proxy.forward", "skep_proxy.handoff", "skep_proxy.hop"):
        __import__(name)


def tune(sock: socket.socket) -> None:
    """Small writes leave at once and a dead peer is noticed. On a listener: for what it accepts, which inherits it."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return
    tune_stream(sock)


def tune_stream(sock: socket.socket) -> None:
    """`tune` for what is known to be TCP."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _KEEP_IDLE is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _KEEP_IDLE, KEEPALIVE)
    if _KEEP_INTERVAL is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _KEEP_INTERVAL, PROBE)
