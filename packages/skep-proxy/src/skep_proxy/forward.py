"""Plain HTTP/1.1: one client connection, request after request, each decided again and taken to its own server.

    head read -> target -> decide -> dial, or the connection kept from the request before if it was to the same target
    -> round trip -> the next request, or the end

One upstream connection is kept between requests, never shared between clients. Requests sent ahead wait for their turn.
"""

from __future__ import annotations

import socket

from skep_policy import Target, Verdict
from skep_policy.verdict import BUDGET, MALFORMED

from . import denial, http1
from .dial import Failure
from .engine import Engine, tune_stream
from .exchange import IDEMPOTENT, destination, request_head
from .farewell import Farewell
from .flow import COPY, Cut, Flow, linger_reset
from .loop import READ
from .roundtrip import RoundTrip
from .scope import Scope
from .upstream import Hop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dial import Pending
    from .session import Session

VIA = "http"

NO_PORT = 0
"""Port in the event about a target whose text is not one."""


class Forward:
    """Owns the client's socket from `start` on, and at most one upstream socket."""

    __slots__ = (
        *("answer", "attempt", "client", "closed", "engine", "hop", "inbound", "kept", "path", "recorded"),
        *("request", "retried", "reused", "scope", "target", "trip", "upstream"),
    )

    def __init__(self, engine: Engine, scope: Scope, client: socket.socket) -> None:
        self.engine = engine
        self.scope = scope
        self.client = client
        self.inbound = b""
        """Read from the client, not used yet: the beginning of the next request."""
        self.upstream: socket.socket | None = None
        self.kept: Target | None = None
        """What the upstream socket is connected to, through `hop` if there is one."""
        self.hop: Hop | None = None
        self.closed = False
        self.attempt: Pending | None = None
        self.request: http1.Request | None = None
        self.target: Target | None = None
        self.path = b""
        self.trip: RoundTrip | None = None
        self.answer: Flow | None = None
        """A denial on its way to a client that may ask again."""
        self.reused = False
        self.retried = False
        self.recorded = False

    def start(self, request: http1.Request, rest: bytes) -> None:
        """Serve a first request whose head has been read, `rest` being what came after it."""
        self.engine.loop.handle(self.client.fileno(), self._on_client)
        self.inbound = rest
        self._begin(request)

    # --- the next request
    # ----------------------------------------------------------------------------------------------

    def _read_request(self) -> None:
        """Take what the client sent until it is a head."""
        looked = 0
        while True:
            end = http1.head_end(self.inbound, looked)
            looked = end if end >= 0 else len(self.inbound)
            if looked > self.engine.limits.head:
                text = f"the request head is longer than {self.engine.limits.head} bytes"
                self._last_words(denial.response(431, "head-too-large", text))
                return
            if end >= 0:
                break
            try:
                data = self.client.recv(COPY)
            except BlockingIOError:
                if self.inbound and not self.engine.handshakes.has(self):
                    self.engine.idle.drop(self)
                    self.engine.handshakes.add(self, self.close)
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self.inbound += data
        self.engine.idle.drop(self)
        self.engine.handshakes.drop(self)
        head, self.inbound = self.inbound[:end], self.inbound[end:]
        try:
            request = http1.parse_request(head)
        except http1.BadMessage as bad:
            self._last_words(denial.response(bad.status, "bad-request", bad.problem))
            return
        if request.method == b"CONNECT":
            self._hand_back().resume(head + self.inbound)
        else:
            self._begin(request)

    def _begin(self, request: http1.Request) -> None:
        self.request = request
        self.target = None
        self.reused = self.retried = self.recorded = False
        try:
            where = destination(request)
        except http1.BadMessage as bad:
            self._last_words(denial.response(bad.status, "bad-request", bad.problem))
            return
        token = self.scope.token
        if token is not None and not token.admits_field(request.get(b"proxy-authorization")):
            self._last_words(denial.not_admitted(head=request.method == b"HEAD"))
            return
        self.path = where.path
        if where.target is None:
            self._refuse(where.authority[:255], NO_PORT, Verdict(False, MALFORMED))
            return
        self.target = target = where.target
        verdict = self.scope.rules.decide(target.host, target.port)
        allowance = self.scope.allowance(target.host, target.port) if verdict.allow else None
        if allowance is not None and allowance.left <= 0:
            verdict = Verdict(False, BUDGET, verdict.rule, verdict.source)
        if not verdict.allow:
            self._refuse(target.host, target.port, verdict)
        elif self.upstream is not None and self.kept == target:
            self.reused = True
            if self.approve(verdict):
                self._send(self.upstream)
        else:
            self._dial(target, verdict)

    # --- somewhere to send it
    # ------------------------------------------------------------------------------------------

    def _dial(self, target: Target, verdict: Verdict) -> None:
        self._drop_upstream()
        attempt = self.engine.dialer.dial(target.host, target.port, verdict, self.scope.rules, self, plain=True)
        self.attempt = None if attempt.over else attempt

    @property
    def asker(self) -> object:
        return self.scope.root

    def approve(self, verdict: Verdict) -> bool:
        assert self.target is not None
        host, port = self.target.host, self.target.port
        if not verdict.allow:
            self._refuse(host, port, verdict)
            return False
        if not self.recorded and not self.engine.decided(host, port, VIA, verdict):
            self._tell_refused(host, port, Verdict(False, denial.NOT_RECORDED))
            return False
        self.recorded = True
        return True

    def connected(self, upstream: socket.socket, hop: Hop | None) -> None:
        self.attempt = None
        tune_stream(upstream)
        self.upstream, self.kept, self.hop = upstream, self.target, hop
        self.engine.loop.register(upstream.fileno(), self._on_upstream)
        self._send(upstream)

    def failed(self, failure: Failure) -> None:
        self.attempt = None
        self._over(failure.reason, failure.detail)
        self.failed_trip(failure.status, failure.reason, failure.told)

    def _send(self, upstream: socket.socket) -> None:
        request, target = self.request, self.target
        assert request is not None and target is not None
        self.trip = trip = RoundTrip(self.engine, self, request, self.client, upstream)
        inbound, self.inbound = self.inbound, b""
        head = request_head(request, target, self.path, hop=self.hop)
        trip.start(head, inbound, self.scope.allowance(target.host, target.port))

    # --- events
    # --------------------------------------------------------------------------------------------------------

    def _on_client(self, mask: int) -> None:
        if self.trip is not None:
            self.trip.on_client(mask)
        elif self.answer is not None:
            self.answer.pump()
        elif self.request is None and mask & READ:
            self._read_request()

    def _on_upstream(self, mask: int) -> None:
        if self.trip is not None:
            self.trip.on_upstream(mask)
        elif mask & READ and self.upstream is not None:
            try:
                self.upstream.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return  # an old event
            except OSError:
                pass
            self._drop_upstream()  # between requests there is nothing for it to say

    # --- ends of a round trip
    # ------------------------------------------------------------------------------------------

    def complete(self) -> None:
        trip = self.trip
        assert trip is not None
        self.inbound = trip.inbound
        self._over(None)
        if not trip.reusable:
            self._drop_upstream()
        if trip.must_close:
            self._last_words()
        else:
            self._next()

    def switched(self, head: bytes) -> None:
        """From here on the connection is a tunnel, with a tunnel's gate."""
        trip, target, upstream = self.trip, self.target, self.upstream
        assert trip is not None and target is not None and upstream is not None
        self.upstream = self.trip = None
        session = self._hand_back()
        session.via, session.host, session.port = VIA, target.host, target.port
        session.buffer = trip.inbound
        session.tunnel(upstream, to_client=head + trip.buffer, bytes_in=trip.bytes_in, bytes_out=trip.bytes_out)

    def unanswered(self, why: str) -> None:
        """A kept connection may have been closed just before it was used: then a request that is safe to repeat is."""
        request, target, trip = self.request, self.target, self.trip
        assert request is not None and target is not None and trip is not None
        if self.reused and not self.retried and request.method in IDEMPOTENT and request.body.empty:
            self.retried = True
            self.inbound = trip.inbound
            self.trip = None
            self._dial(target, self.scope.rules.decide(target.host, target.port))
        else:
            self.failed_trip(502, "no-response", f"the server did not answer: {why}")

    def failed_trip(self, status: int, reason: str, detail: str) -> None:
        assert self.request is not None
        self._over(reason)
        self._drop_upstream(reset=True)
        self._last_words(denial.response(status, reason, detail, head=self.request.method == b"HEAD"))

    def cut(self, cut: Cut) -> None:
        trip, target = self.trip, self.target
        assert trip is not None and target is not None
        self.engine.decided(target.host, target.port, VIA, cut.verdict)
        self._over(cut.verdict.reason)
        self._drop_upstream(reset=True)
        if trip.answered:
            self.abort()
        else:
            self._last_words(denial.denied(target.host, target.port, cut.verdict))

    def broken(self, reason: str) -> None:
        self._over(reason)
        self.abort()

    # --- answers of our own
    # --------------------------------------------------------------------------------------------

    def _refuse(self, host: str, port: int, verdict: Verdict) -> None:
        self.engine.decided(host, port, VIA, verdict)
        self._tell_refused(host, port, verdict)

    def _tell_refused(self, host: str, port: int, verdict: Verdict) -> None:
        request = self.request
        assert request is not None
        keep = request.keep_alive and request.body.empty
        text = denial.denied(host, port, verdict, keep_alive=keep, head=request.method == b"HEAD")
        if not keep:
            self._last_words(text)
            return
        loop, pipes = self.engine.loop, self.engine.pipes
        self.answer = Flow(loop, pipes, self, self.client, self.client, first=text, remaining=0)
        loop.soon(self.answer.pump)  # not from here: a thousand requests sent ahead must not recurse

    def flow_ended(self, flow: Flow) -> None:
        self._next()

    def flow_waits(self, flow: Flow) -> None:
        """An answer of our own has no filter."""

    def flow_cut(self, flow: Flow, problem: Exception) -> None:
        self.abort()

    def source_failed(self, flow: Flow, error: OSError) -> None:
        self.abort()

    def sink_failed(self, flow: Flow, error: OSError) -> None:
        self.abort()

    def _last_words(self, data: bytes = b"") -> None:
        """An answer, and the end of the connection."""
        self._over(None)
        self._let_go()
        Farewell(self.engine, self.scope, self.client).start(data, owner=self)

    # --- ends
    # ----------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self.request = self.trip = self.answer = None
        self.engine.idle.add(self, self.close)
        self.engine.loop.soon(self._go_on)

    def _go_on(self) -> None:
        if not self.closed and self.request is None:
            self._read_request()

    def _over(self, error: str | None, unreached: str | None = None) -> None:
        """The request's end is on record, if its beginning is; once."""
        if self.recorded and self.target is not None:
            self.recorded = False
            bytes_in, bytes_out = (self.trip.bytes_in, self.trip.bytes_out) if self.trip is not None else (0, 0)
            host, port = self.target.host, self.target.port
            self.engine.ended(host, port, VIA, bytes_in, bytes_out, error, unreached=unreached)

    def _hand_back(self) -> Session:
        """The client's socket belongs to a new session; everything else is closed."""
        from .session import Session  # sessions make forwarders, and a forwarder may end as a session

        self._let_go()
        session = Session(self.engine, self.scope, self.client, tcp=self.client.family != socket.AF_UNIX)
        self.engine.passed_on(self.scope, self, session)
        return session

    def _drop_upstream(self, *, reset: bool = False) -> None:
        if self.upstream is not None:
            self.engine.loop.forget(self.upstream.fileno())
            if reset:
                linger_reset(self.upstream)
            self.upstream.close()
            self.upstream = self.kept = None

    def _let_go(self) -> None:
        """Nothing is waited for any more, and the upstream is closed."""
        self.closed = True
        self.engine.idle.drop(self)
        self.engine.handshakes.drop(self)
        if self.attempt is not None:
            self.attempt.abort()
        if self.trip is not None:
            self.trip.release()
        if self.answer is not None:
            self.answer.release()
        self._drop_upstream()

    def abort(self) -> None:
        """Both ends are cut, with a reset."""
        if not self.closed:
            linger_reset(self.client)
            self._drop_upstream(reset=True)
        self.close()

    def close(self) -> None:
        """The client's socket and everything else are closed; once."""
        if self.closed:
            return
        self._over("closed")
        self._let_go()
        self.engine.loop.forget(self.client.fileno())
        self.client.close()
        self.engine.closed(self.scope, self)
