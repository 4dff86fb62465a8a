"""From an allowed target to a connected socket: resolve, check every address, dial what was checked.

In this order, and nothing is skipped:

1. The name is resolved only now, after `decide` allowed it.
2. Every address is judged by `Rules.check_address`; an address of this machine's own interfaces counts as private, and
   the proxy's own ports are never dialled. What may not be dialled is left out; when nothing is left, the target is
   denied.
3. The owner approves (and records) the final verdict; only then is the first packet sent.
4. Addresses are tried in the resolver's order, families taking turns, each a quarter of a second after the one before
   or when it fails (RFC 8305, without its sorting). The connection goes to an address, never to the name again.
"""

from __future__ import annotations

import errno
import os
import socket

from skep_policy import Rules, Verdict, classify, is_address
from skep_policy.address import LOOPBACK
from skep_policy.value import Value
from skep_policy.verdict import PRIVATE_ADDRESS

from .loop import Deadlines, Loop
from .resolver import Resolver
from .upstream import Hop, Upstream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

STAGGER = 0.25
"""Seconds before the next address is tried beside the ones that have not answered (RFC 8305 section 8)."""

ADDRESSES = 8
"""Addresses of one name that are tried at most."""

_STREAM = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)
_PENDING = frozenset((errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN, errno.EINTR))
_DONE = frozenset((0, errno.EISCONN))
_SHORTAGE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Failure(Value):
    """Why an allowed target was not reached. `status` is 502, 503 or 504, `reason` a word for logs, `detail` a sentence
    for the operator, and `told` one for the client, who learns nothing of the operator's own proxy.
    """

    status: int
    reason: str
    detail: str
    told: str


if TYPE_CHECKING:

    class Owner(Protocol):
        """Who wants a connection. After `dial`, exactly one of `connected` and `failed` follows an approval."""

        @property
        def asker(self) -> object:
            """For whom names are looked up: one does not hold up another."""
            ...

        def approve(self, verdict: Verdict) -> bool:
            """The final verdict, once, before the first packet; False ends the attempt without a further call."""
            ...

        def connected(self, upstream: socket.socket, hop: Hop | None) -> None:
            """`hop` is the upstream proxy at the other end, None when it is the target itself (or a tunnel to it)."""
            ...

        def failed(self, failure: Failure) -> None: ...

        def abort(self) -> None: ...


if TYPE_CHECKING:

    class Pending(Protocol):
        """A connection being made; `over` when nothing is left to wait for."""

        over: bool

        def abort(self) -> None:
            """Nothing is open or waited for any more, and the owner hears nothing."""
            ...


class Dialer:
    """Makes connections on the loop's thread."""

    def __init__(self, loop: Loop, resolver: Resolver, *, seconds: float, upstream: Upstream | None = None) -> None:
        self.loop = loop
        self.resolver = resolver
        self.upstream = upstream or Upstream()
        self.own_ports: set[int] = set()
        """TCP ports this proxy itself listens on, in the network it dials from."""
        self.patience: Deadlines = loop.deadlines(seconds)
        self.stagger: Deadlines = loop.deadlines(STAGGER)
        self._probes: dict[int, socket.socket] = {}

    def dial(
        self, host: str, port: int, verdict: Verdict, rules: Rules, owner: Owner, *, plain: bool = False
    ) -> Pending:
        """Start towards `host`, canonical and allowed by `verdict` of `rules`. Calls of the owner may happen before
        this returns. `plain` is for HTTP requests that an upstream proxy takes as they are.
        """
        hop = self.upstream.hop(host, port, plain=plain)
        if hop is None:
            return self.attempt(host, port, verdict, rules, owner)
        if plain and hop.kind == "http":
            return self.attempt(hop.host, hop.port, verdict, None, owner, hop=hop)
        from .hop import HopTunnel  # only where there is an upstream proxy

        tunnel = HopTunnel(self, hop, host, port, owner)
        tunnel.start(verdict)
        return tunnel

    def attempt(
        self, host: str, port: int, verdict: Verdict, rules: Rules | None, owner: Owner, *, hop: Hop | None = None
    ) -> Attempt:
        """Start towards exactly this host; without rules, whatever its address is: the operator named it."""
        attempt = Attempt(self, host, port, verdict, rules, owner, hop)
        attempt.start()
        return attempt

    def is_own_address(self, ip: str) -> bool:
        """True when packets to `ip` never leave this machine."""
        if classify(ip) in (LOOPBACK, "unspecified"):
            return True
        family = family_of(ip)
        probe = self._probes.get(family)
        try:
            if probe is None:
                probe = self._probes[family] = socket.socket(family, socket.SOCK_DGRAM)
            probe.connect((ip, 9))  # sends nothing: the kernel picks the source address, and for its own it is the same
            return probe.getsockname()[0] == ip
        except OSError:
            return False  # no route: nothing will be dialled either

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()
        self._probes.clear()


class Attempt:
    """One target being dialled."""

    __slots__ = (
        *("approved", "dialer", "hop", "host", "last", "over", "owner", "pending", "port", "remaining"),
        *("rules", "verdict", "waits"),
    )

    def __init__(
        self,
        dialer: Dialer,
        host: str,
        port: int,
        verdict: Verdict,
        rules: Rules | None,
        owner: Owner,
        hop: Hop | None,
    ) -> None:
        self.dialer = dialer
        self.host = host
        self.port = port
        self.verdict = verdict
        self.rules = rules
        self.owner = owner
        self.hop = hop
        self.over = False
        self.approved = False
        self.waits = False
        """Something will call: the resolver, a time limit, the loop."""
        self.remaining: list[str] = []
        self.pending: dict[int, tuple[socket.socket, str]] = {}
        self.last: Failure | None = None

    def start(self) -> None:
        host = self.host
        if is_address(host):
            self._found([host], None)
        elif host == "localhost" or host.endswith(".localhost"):
            self._found(["127.0.0.1", "::1"], None)  # RFC 6761 6.3: no resolver is asked
        else:
            self._has_patience()
            self.dialer.resolver.lookup(host, self.port, self._found, asker=self.owner.asker)

    def abort(self) -> None:
        """Nothing is open or waited for any more, and the owner hears nothing."""
        self.over = True
        if not self.waits:
            return
        dialer = self.dialer
        dialer.patience.drop(self)
        dialer.stagger.drop(self)
        dialer.resolver.cancel(self.host, self._found, asker=self.owner.asker)
        for fd, (sock, _) in self.pending.items():
            dialer.loop.forget(fd)
            sock.close()
        self.pending.clear()

    def fault(self) -> None:
        """Of ours: the owner is cut as well."""
        self.abort()
        self.owner.abort()

    def _found(self, addresses: list[str], error: OSError | None) -> None:
        if self.over:
            return
        if error is not None or not addresses:
            why = "no address" if error is None else error.strerror or error
            self._give_up(self._failure(502, "unresolvable", f"{self.host} cannot be resolved: {why}"))
            return
        allowed: list[str] = []
        verdict = self.verdict
        for ip in addresses:
            checked = self._check(ip)
            if checked.allow:
                allowed.append(ip)
            else:
                verdict = checked
        if allowed:
            verdict = self.verdict
        self.approved = self.owner.approve(verdict) and verdict.allow
        if not self.approved:
            self.abort()
            return
        self.remaining = take_turns(allowed)[:ADDRESSES]
        self._next()
        if not self.over:
            self._has_patience()

    def _has_patience(self) -> None:
        self.waits = True
        self.dialer.patience.add(self, self._too_late)

    def _check(self, ip: str) -> Verdict:
        verdict, rules = self.verdict, self.rules
        private = True
        if rules is not None:
            verdict = rules.check_address(verdict, ip)
            if not verdict.allow:
                return verdict
            # A rule for a loopback service is a rule for this machine.
            private = verdict.private or rules.check_address(verdict, "127.0.0.1").allow
        if (not private or self.port in self.dialer.own_ports) and self.dialer.is_own_address(ip):
            return Verdict(False, PRIVATE_ADDRESS, verdict.rule, verdict.source)
        return verdict

    def _next(self) -> None:
        """Dial the next address, or give up when none is left or on its way."""
        dialer = self.dialer
        while self.remaining:
            ip = self.remaining.pop(0)
            try:
                sock = socket.socket(family_of(ip), _STREAM)
            except OSError as error:
                self._note(ip, error.errno or 0)
                continue
            if _STREAM == socket.SOCK_STREAM:
                sock.setblocking(False)
            code = sock.connect_ex((ip, self.port))
            if code in _PENDING:
                code = sock.connect_ex((ip, self.port))  # on loopback the handshake is over by now
            if code in _DONE:
                self._connected(sock)
                return
            if code not in _PENDING:
                self._note(ip, code)
                sock.close()
                continue
            self.waits = True
            self.pending[sock.fileno()] = (sock, ip)
            dialer.loop.register(sock.fileno(), self._on_event)
            if self.remaining:
                dialer.stagger.add(self, self._next)
            return
        if not self.pending:
            self._finish(self.last or self._failure(502, "unreachable", "no address"))

    def _on_event(self, _mask: int) -> None:
        for fd, (sock, ip) in list(self.pending.items()):
            code = sock.connect_ex((ip, self.port))
            if code in _PENDING:
                continue
            del self.pending[fd]
            self.dialer.loop.unregister(fd)  # it lives on with the owner, which registers it anew
            if code in _DONE:
                self._connected(sock)
                return
            self._note(ip, code)
            sock.close()
            self.dialer.stagger.drop(self)
            self._next()
            return

    def _connected(self, sock: socket.socket) -> None:
        owner = self.owner
        self.abort()
        owner.connected(sock, self.hop)

    def _too_late(self) -> None:
        detail = f"{self.host}:{self.port} did not answer within {self.dialer.patience.seconds:g} seconds"
        self._give_up(self._failure(504, "timeout", detail))

    def _note(self, ip: str, code: int) -> None:
        reason = errno.errorcode.get(code, "error").lower().removeprefix("e")
        shown = f"[{ip}]:{self.port}" if ":" in ip else f"{ip}:{self.port}"
        self.last = self._failure(503 if code in _SHORTAGE else 502, reason, f"{shown}: {os.strerror(code)}")

    def _failure(self, status: int, reason: str, detail: str) -> Failure:
        if self.rules is not None:
            return Failure(status, reason, detail, detail)
        return Failure(status, reason, f"upstream proxy: {detail}", "the upstream proxy cannot be reached")

    def _give_up(self, failure: Failure) -> None:
        """The owner has not approved yet when resolving failed or took too long; the decision is on record either
        way.
        """
        if self.approved or self.owner.approve(self.verdict):
            self._finish(failure)
        else:
            self.abort()

    def _finish(self, failure: Failure) -> None:
        owner = self.owner
        self.abort()
        owner.failed(failure)


def family_of(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def take_turns(addresses: list[str]) -> list[str]:
    """The same addresses, families alternating, each family in its order, beginning with the family of the first."""
    if len(addresses) < 2:
        return addresses
    first = [ip for ip in addresses if (":" in ip) == (":" in addresses[0])]
    second = [ip for ip in addresses if (":" in ip) != (":" in addresses[0])]
    ordered: list[str] = []
    for index in range(max(len(first), len(second))):
        ordered += first[index : index + 1] + second[index : index + 1]
    return ordered
