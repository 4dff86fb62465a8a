"""One client connection from its first byte: which protocol, where to, may it, and then a tunnel or a refusal.

first byte 0x05           SOCKS5
anything else             HTTP: CONNECT makes a tunnel, other methods go to `forward`
a transparent listener    no first byte is waited for: the address that was dialled says where to
"""

from __future__ import annotations

import socket
from functools import lru_cache

from skep_policy import MalformedHost, Target, Verdict, canonical_host, is_address, parse_target
from skep_policy.verdict import BUDGET, MALFORMED

from . import denial, http1, socks5
from .dial import Failure
from .engine import Engine, tune_stream
from .farewell import Farewell
from .flow import COPY, linger_reset
from .loop import GONE, MORE, READ
from .passing import MAGIC, Refused, close_all, receive
from .relay import Relay, closed_by, gone
from .scope import Scope
from .tls import SniGate
from .upstream import Hop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dial import Pending
    from .flow import Filter

target_of = lru_cache(1024)(parse_target)
"""What a text means is remembered, never whether it is allowed; one that means a target is no longer than a name."""

NO_PORT = 0
"""Port in the event about a target whose text is not one."""


class Session:
    """Owns the client's socket until it becomes a tunnel's or a forwarder's."""

    __slots__ = (
        *("admitted", "attempt", "before", "buffer", "client", "closed", "engine", "host", "looked"),
        *("owes_end", "port", "relay", "scope", "tcp", "unread", "via"),
    )

    def __init__(self, engine: Engine, scope: Scope, client: socket.socket, *, tcp: bool) -> None:
        """`tcp` says what the client's socket is; else it is a Unix socket."""
        self.engine = engine
        self.scope = scope
        self.client = client
        self.buffer = b""
        self.looked = 0
        self.attempt: Pending | None = None
        self.relay: Relay | None = None
        self.via = "connect"
        self.host = ""
        self.port = 0
        self.owes_end = False
        """A connection was allowed, and its end is not on record yet."""
        self.before = 0, 0
        self.unread = True
        """The client's socket may hold bytes, or an end, that the loop will not report again."""
        self.closed = False
        self.tcp = tcp
        self.admitted = scope.token is None

    def start(self) -> None:
        """Wait for the client to say what it wants."""
        self.engine.opened(self.scope, self)
        self.engine.handshakes.add(self, self._silent)
        may_hand_over = not self.tcp and self.scope.parent is None
        first = self._on_first_of_unix if may_hand_over else self._on_request
        self.engine.loop.register(self.client.fileno(), first)

    def start_transparent(self) -> None:
        """The address the client dialled is the request."""
        self.engine.opened(self.scope, self)
        self.engine.loop.register(self.client.fileno(), self._on_waiting)
        self.via = "transparent"
        address = self.client.getsockname()
        self._open(self.scope.dialled(address[0].removeprefix("::ffff:"), address[1]))

    def _on_first_of_unix(self, mask: int) -> None:
        """A client on a Unix socket may hand listeners over instead; they get a scope of their own under the same
        rules.
        """
        if not mask & READ:
            return
        try:
            data, fds = receive(self.client, COPY)
        except BlockingIOError:
            return
        except (OSError, Refused):
            self.close()
            return
        if data.startswith(MAGIC):
            from .handoff import Handoff  # it needs listeners, and they need sessions

            self._forget()
            scope = self.engine.scope(self.scope.rules, parent=self.scope)
            Handoff(self.engine, scope, self.client, trusted=False).take_over(data, fds)
            return
        close_all(fds)
        self.engine.loop.handle(self.client.fileno(), self._on_request)
        if not self._received(data):
            self._on_request(READ)  # what has come meanwhile, or did not fit, is not told again

    def _on_request(self, mask: int) -> None:
        if not mask & READ:
            return
        while True:
            try:
                data = self.client.recv(COPY)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            self.unread = not self.tcp or len(data) == COPY or mask & MORE != 0
            if self._received(data):
                return

    def _received(self, data: bytes) -> bool:
        """True when nothing more is read here."""
        if not data:
            self.close()
            return True
        self.buffer = self.buffer + data if self.buffer else data
        return self._understood()

    def _understood(self) -> bool:
        """True when the request is complete, refused or closed: nothing more is read here."""
        if self.via == "socks5" or self.buffer[0] == socks5.VERSION:
            return self._understood_socks()
        end = http1.head_end(self.buffer, self.looked)
        size = end if end >= 0 else len(self.buffer)
        if end < 0 and size <= self.engine.limits.head:
            self.looked = size
            return False
        if size > self.engine.limits.head:
            text = f"the request head is longer than {self.engine.limits.head} bytes"
            self.say_goodbye(denial.response(431, "head-too-large", text))
            return True
        head, self.buffer = self.buffer[:end], self.buffer[end:]
        self.looked = 0
        self.engine.handshakes.drop(self)
        try:
            request = http1.parse_request(head)
            if self.scope.token is not None and not self.scope.token.admits_field(request.get(b"proxy-authorization")):
                self.say_goodbye(denial.not_admitted(head=request.method == b"HEAD"))
                return True
            if request.method == b"CONNECT":
                self._connect(request.target.decode("ascii"))
            else:
                self._forward(request)
        except http1.BadMessage as bad:
            self.say_goodbye(denial.response(bad.status, "bad-request", bad.problem))
        return True

    def _understood_socks(self) -> bool:
        try:
            if self.via != "socks5":
                greeting = socks5.greeting(self.buffer, password=not self.admitted)
                if greeting is None:
                    return False
                self.via = "socks5"
                step, used = greeting
                self.buffer = self.buffer[used:]
                self.client.send(step.answer)
            if not self.admitted and not self._admit():
                return False
            asked = socks5.request(self.buffer)
            if asked is None:
                return False
        except socks5.BadSocks as bad:
            self.say_goodbye(bad.answer)
            return True
        except OSError:
            self.close()
            return True
        step, used = asked
        self.buffer = self.buffer[used:]
        self.engine.handshakes.drop(self)
        self.engine.loop.handle(self.client.fileno(), self._on_waiting)
        self._open_text(step.host, step.port)
        return True

    def _admit(self) -> bool:
        """True once a SOCKS client has shown the token. Raises BadSocks for another one."""
        shown = socks5.credentials(self.buffer)
        if shown is None:
            return False
        user, password, used = shown
        if self.scope.token is not None and not self.scope.token.admits(user, password):
            raise socks5.BadSocks(socks5.NOT_ADMITTED)
        self.admitted = True
        self.buffer = self.buffer[used:]
        self.client.send(socks5.ADMITTED)
        return True

    def _open_text(self, host: str, port: int) -> None:
        """A host that has not been looked at, and any number."""
        try:
            canonical = canonical_host(host)
        except MalformedHost:
            self._refuse(host[:255], port, Verdict(False, MALFORMED))
            return
        self._open(Target(canonical, port, is_address(canonical)))

    def _forward(self, request: http1.Request) -> None:
        from .forward import Forward

        forward = Forward(self.engine, self.scope, self.client)
        self.closed = True
        self.engine.passed_on(self.scope, self, forward)
        forward.start(request, self.buffer)

    def resume(self, buffer: bytes) -> None:
        """Continue with a registered connection of which a complete request has been read."""
        self.buffer = buffer
        self._understood()

    def _connect(self, text: str) -> None:
        self.engine.loop.handle(self.client.fileno(), self._on_waiting)
        try:
            target = target_of(text)
        except MalformedHost:
            self._refuse(text[:255], NO_PORT, Verdict(False, MALFORMED))
            return
        self._open(target)

    def _open(self, target: Target) -> None:
        """Decide, and dial when allowed."""
        self.host, self.port = target.host, target.port
        verdict = self.scope.rules.decide(target.host, target.port)
        allowance = self.scope.allowance(target.host, target.port) if verdict.allow else None
        if allowance is not None and allowance.left <= 0:
            verdict = Verdict(False, BUDGET, verdict.rule, verdict.source)
        if not verdict.allow:
            self._refuse(target.host, target.port, verdict)
            return
        attempt = self.engine.dialer.dial(target.host, target.port, verdict, self.scope.rules, self)
        self.attempt = None if attempt.over else attempt

    def _on_waiting(self, mask: int) -> None:
        """The client's bytes wait in the kernel until there is somewhere to send them; one that is gone waits for
        nothing.
        """
        if mask & READ:
            self.unread = True
        if mask & GONE and self.attempt is not None and gone(self.client):
            self.close()

    @property
    def asker(self) -> object:
        return self.scope.root

    def approve(self, verdict: Verdict) -> bool:
        if not verdict.allow:
            self._refuse(self.host, self.port, verdict)
            return False
        if not self.engine.decided(self.host, self.port, self.via, verdict):
            self._tell_refused(self.host, self.port, Verdict(False, denial.NOT_RECORDED))
            return False
        self.owes_end = True
        return True

    def connected(self, upstream: socket.socket, hop: Hop | None) -> None:
        self.attempt = None
        tune_stream(upstream)
        self.engine.loop.register(upstream.fileno(), self._on_waiting)
        self.tunnel(upstream, to_client=self._granted(), fresh=True)

    def tunnel(
        self, upstream: socket.socket, *, to_client: bytes, fresh: bool = False, bytes_in: int = 0, bytes_out: int = 0
    ) -> None:
        """Both sockets are one tunnel from here on. The byte counts are of what passed before it began; `fresh` says
        that the upstream socket was registered just now.
        """
        engine = self.engine
        self.owes_end = False
        engine.stats.tunnels += 1
        self.before = bytes_in, bytes_out
        self.relay = relay = Relay(
            *(engine.loop, engine.pipes, engine.handshakes, self.client, upstream),
            to_client=to_client,
            gate=self._gate(),
            allowance=self.scope.allowance(self.host, self.port),
            client_tcp=self.tcp,
            done=self._tunnel_done,
        )
        early, self.buffer = self.buffer, b""
        relay.start(early, client_unread=self.unread, upstream_unread=not fresh)

    def failed(self, failure: Failure) -> None:
        self.attempt = None
        self._never_stood(failure.reason, failure.detail)
        match self.via:
            case "transparent":
                self.abort()
            case "socks5":
                self.say_goodbye(socks5.reply(socks5.code_of(failure.reason)))
            case _:
                self.say_goodbye(denial.response(failure.status, failure.reason, failure.told))

    def _never_stood(self, reason: str, why: str | None = None) -> None:
        """An allowed connection that did not come to be is over; once."""
        if self.owes_end:
            self.owes_end = False
            self.engine.ended(self.host, self.port, self.via, 0, 0, reason, unreached=why)

    def _granted(self) -> bytes:
        match self.via:
            case "connect":
                return b"HTTP/1.1 200 Connection established\r\n\r\n"
            case "socks5":
                return socks5.reply(socks5.SUCCEEDED)
            case _:
                return b""

    def _gate(self) -> Filter | None:
        if self.scope.rules.sni == "off":
            return None
        return SniGate(self.host, lambda name: self.scope.rules.decide(name, self.port), limit=self.engine.limits.head)

    def _tunnel_done(self, relay: Relay) -> None:
        engine = self.engine
        engine.stats.tunnels -= 1
        error = None
        if relay.refused is not None:
            error = relay.refused.verdict.reason
            engine.decided(relay.refused.host or self.host, self.port, self.via, relay.refused.verdict)
        elif relay.error is not None:
            error = closed_by(relay.error)
        bytes_in, bytes_out = self.before
        engine.ended(*(self.host, self.port, self.via), bytes_in + relay.down.moved, bytes_out + relay.up.moved, error)
        self.closed = True
        self.relay = None  # nothing points in a circle any more, so all of it is gone at once
        engine.closed(self.scope, self)

    def _refuse(self, host: str, port: int, verdict: Verdict) -> None:
        """A denial is denied whether or not it can be recorded."""
        self.engine.decided(host, port, self.via, verdict)
        self._tell_refused(host, port, verdict)

    def _tell_refused(self, host: str, port: int, verdict: Verdict) -> None:
        match self.via:
            case "transparent":
                self.abort()
            case "socks5":
                self.say_goodbye(socks5.reply(socks5.NOT_ALLOWED))
            case _:
                self.say_goodbye(denial.denied(host, port, verdict))

    def say_goodbye(self, data: bytes) -> None:
        """`data` are the last bytes to this client."""
        self._let_go()
        Farewell(self.engine, self.scope, self.client).start(data, owner=self)

    def _silent(self) -> None:
        """The handshake took too long. A client that said nothing is told nothing."""
        if self.buffer and self.buffer[0] != socks5.VERSION:
            self.say_goodbye(denial.response(408, "timeout", "the request did not arrive in time"))
        else:
            self.close()

    def abort(self) -> None:
        """Cut, with a reset."""
        if self.relay is not None:
            self.relay.abort()
            return
        if not self.closed:
            linger_reset(self.client)
        self.close()

    def close(self) -> None:
        """The client's socket is closed and nothing is waited for; once. A tunnel is closed by its relay."""
        if self.closed or self.relay is not None:
            return
        self.engine.loop.forget(self.client.fileno())
        self.client.close()
        self._forget()

    def _forget(self) -> None:
        """Nothing is waited for any more; the socket is someone else's, who is not counted, or closed."""
        self._let_go()
        self.engine.closed(self.scope, self)

    def _let_go(self) -> None:
        self.closed = True
        self.engine.handshakes.drop(self)
        if self.attempt is not None:
            self.attempt.abort()
        self._never_stood("closed")
