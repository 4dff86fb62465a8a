"""One plain HTTP request and its response over a connected upstream, both moving at the same time.

So `Expect: 100-continue`, answers that come before the request is complete, and long streams need no rule of their own.
"""

from __future__ import annotations

import socket

from . import http1
from .chunked import ChunkedFilter
from .engine import Engine
from .exchange import response_head, upgrade_asked
from .flow import COPY, Allowance, Cut, Flow
from .loop import READ, WRITE
from .relay import closed_by, gone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol


if TYPE_CHECKING:

    class Owner(Protocol):
        """Hears of the end of a round trip, once. The sockets stay the owner's."""

        def complete(self) -> None:
            """The response is through; see `reusable` and `must_close`."""
            ...

        def switched(self, head: bytes) -> None:
            """The server has switched protocols; `head` is for the client, and so is what is in `buffer`."""
            ...

        def unanswered(self, why: str) -> None:
            """The upstream went away without a byte of response."""
            ...

        def failed_trip(self, status: int, reason: str, detail: str) -> None:
            """Nothing of a final response went to the client yet."""
            ...

        def cut(self, cut: Cut) -> None:
            """The request spent its budget."""
            ...

        def broken(self, reason: str) -> None:
            """The client is gone, or the response ends in the middle: so must its connection, so that it can tell."""
            ...


class RoundTrip:
    """`bytes_in` and `bytes_out` are what the client got and what was sent for it, heads included."""

    __slots__ = (
        *("_head_in", "_head_out", "_looked", "answered", "buffer", "client", "down", "engine", "inbound"),
        *("must_close", "over", "owner", "request", "reusable", "up", "up_failed", "upstream"),
    )

    def __init__(
        self, engine: Engine, owner: Owner, request: http1.Request, client: socket.socket, upstream: socket.socket
    ) -> None:
        self.engine = engine
        self.owner = owner
        self.request = request
        self.client = client
        self.upstream = upstream
        self.up: Flow | None = None
        self.down: Flow | None = None
        self.inbound = b""
        """Read from the client and not part of this request."""
        self.buffer = b""
        """Read from the upstream, not used yet."""
        self.answered = False
        self.up_failed = False
        self.over = False
        self.reusable = True
        self.must_close = not request.keep_alive
        self._looked = 0
        self._head_in = 0
        self._head_out = 0

    @property
    def bytes_in(self) -> int:
        return self._head_in + (self.down.moved if self.down is not None else 0)

    @property
    def bytes_out(self) -> int:
        return self._head_out + (self.up.moved if self.up is not None else 0)

    def start(self, head: bytes, inbound: bytes, allowance: Allowance | None) -> None:
        """`head` goes up and the body after it, beginning with `inbound`."""
        body = self.request.body
        self.up = up = Flow(
            *(self.engine.loop, self.engine.pipes, self, self.client, self.upstream),
            first=head,
            remaining=None if body.chunked else body.length,
            filter=ChunkedFilter(reframe=True) if body.chunked else None,
            allowance=allowance,
        )
        try:
            if allowance is not None:
                allowance.charge(len(head))
            self._head_out = len(head)
            up.begin(inbound)
        except (Cut, ValueError) as problem:
            self.flow_cut(up, problem)
            return
        self.inbound = up.rest
        up.pump()

    def on_client(self, mask: int) -> None:
        if mask & READ and self.up is not None:
            if self.up.ended:
                self._still_there()
            else:
                self.up.pump()
        if mask & WRITE and self.down is not None and self.down.blocked:
            self.down.pump()

    def _still_there(self) -> None:
        """A client that is gone need not wait for a server that is silent. One that only stopped sending is not
        gone.
        """
        try:
            if not self.client.recv(1, socket.MSG_PEEK) and gone(self.client):
                self._broken("closed")
        except BlockingIOError:
            pass
        except OSError as error:
            self._broken(closed_by(error))

    def on_upstream(self, mask: int) -> None:
        if mask & READ:
            if self.down is not None:
                self.down.pump()
            else:
                self._read_response()
        if mask & WRITE and self.up is not None and self.up.blocked:
            self.up.pump()

    def release(self) -> None:
        """Nothing moves any more, and the owner hears nothing."""
        self.over = True
        for flow in (self.up, self.down):
            if flow is not None:
                flow.release()

    def _read_response(self) -> None:
        while self.down is None and not self.over:
            end = http1.head_end(self.buffer, self._looked)
            size = end if end >= 0 else len(self.buffer)
            self._looked = 0 if end >= 0 else size
            if size > self.engine.limits.head:
                self._bad_response("the response head is too long")
                return
            if end >= 0:
                head, self.buffer = self.buffer[:end], self.buffer[end:]
                try:
                    self._respond(http1.parse_response(head))
                except http1.BadMessage as bad:
                    self._bad_response(bad.problem)
                continue
            try:
                data = self.upstream.recv(COPY)
            except BlockingIOError:
                return
            except OSError as error:
                self._no_response(closed_by(error))
                return
            if not data:
                self._no_response("it closed the connection")
                return
            self.buffer += data

    def _respond(self, response: http1.Response) -> None:
        request = self.request
        if response.status == 101:
            if upgrade_asked(request) is None:
                raise http1.BadMessage("the server switched protocols unasked", status=502)
            head = response_head(response, http1.NO_BODY, close=False, minor=1)
            self._head_in += len(head)
            self.release()
            self.owner.switched(head)
            return
        body = http1.response_body(response, request.method)
        if response.status < 200:
            if request.minor:
                self._pass_interim(response_head(response, body, close=False, minor=1))
            return
        until_close = not body.chunked and body.length is None
        if until_close or (body.chunked and not request.minor) or (self.up_failed and not request.body.empty):
            self.must_close = True
        if until_close or self.up_failed or not response.keep_alive:
            self.reusable = False
        head = response_head(response, body, close=self.must_close, minor=request.minor)
        self.answered = True
        self._head_in += len(head)
        self.down = down = Flow(
            *(self.engine.loop, self.engine.pipes, self, self.upstream, self.client),
            first=head,
            remaining=body.length,
            filter=ChunkedFilter(reframe=bool(request.minor)) if body.chunked else None,
        )
        try:
            down.begin(self.buffer)
        except ValueError as problem:
            self.flow_cut(down, problem)
            return
        self.buffer = down.rest
        down.pump()

    def _pass_interim(self, head: bytes) -> None:
        """A 1xx head is small and the client waits for it; one that cannot take it is gone."""
        self._head_in += len(head)
        try:
            if self.client.send(head) == len(head):
                return
        except OSError:
            pass
        self._broken("the client does not read")

    def _bad_response(self, problem: str) -> None:
        self.release()
        self.owner.failed_trip(502, "bad-response", problem)

    def _no_response(self, why: str) -> None:
        self.release()
        if self.buffer:
            self.owner.failed_trip(502, "bad-response", f"the response ended in its head: {why}")
        else:
            self.owner.unanswered(why)

    def _broken(self, reason: str) -> None:
        self.release()
        self.owner.broken(reason)

    def flow_waits(self, flow: Flow) -> None:
        """A chunked body has no time limit."""

    def flow_ended(self, flow: Flow) -> None:
        if flow is self.up:
            self.inbound = flow.rest
            self._read_response()
            return
        if self.up is not None and not self.up.ended:
            # answered before the request was complete: what is left of it is not worth reading
            self.must_close = True
        if flow.rest:
            self.reusable = False  # more bytes than the response has: the next response could not be told from them
        if self.must_close:
            self.reusable = False
        self.release()
        self.owner.complete()

    def source_failed(self, flow: Flow, error: OSError) -> None:
        self._broken(closed_by(error))

    def sink_failed(self, flow: Flow, error: OSError) -> None:
        if flow is self.up:
            self.up_failed = True  # the server may have answered before it stopped reading
            self._read_response()
        else:
            self._broken(closed_by(error))

    def flow_cut(self, flow: Flow, problem: Exception) -> None:
        self.release()
        if isinstance(problem, Cut):
            self.owner.cut(problem)
        elif flow is self.up and not self.answered:
            self.owner.failed_trip(400, "bad-request", str(problem))
        else:
            self.owner.broken("bad-request" if flow is self.up else "bad-response")
