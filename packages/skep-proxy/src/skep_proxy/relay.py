"""A tunnel: bytes between two sockets, both ways, until both have ended.

- Half-close: the end of one direction is passed on after its last byte, and the other direction lives on.
- A reset is passed on as a reset.
- No idle limit: streams may be silent for as long as both ends like.
"""

from __future__ import annotations

import select
import socket

from .flow import Allowance, Cut, Flow, linger_reset
from .loop import GONE, MORE, READ, WRITE, Deadlines, Loop
from .pipes import Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .flow import Filter


class Relay:
    """Owns both sockets from `start` on and closes them before it calls `done`.

    `up` is from the client, `down` to it. `refused` is the Cut that ended it, `error` the first failure of a socket.
    """

    __slots__ = (
        *("client", "closed", "done", "down", "error", "handshakes", "loop", "refused", "reset", "up"),
        *("upstream",),
    )

    def __init__(
        self,
        loop: Loop,
        pipes: Pipes,
        handshakes: Deadlines,
        client: socket.socket,
        upstream: socket.socket,
        *,
        to_client: bytes = b"",
        gate: Filter | None = None,
        allowance: Allowance | None = None,
        client_tcp: bool,
        done: Callable[[Relay], None],
    ) -> None:
        self.loop = loop
        self.handshakes = handshakes
        self.client = client
        self.upstream = upstream
        self.up = Flow(loop, pipes, self, client, upstream, filter=gate, allowance=allowance, tcp=client_tcp)
        self.down = Flow(loop, pipes, self, upstream, client, first=to_client, tcp=True)
        self.done = done
        self.error: OSError | None = None
        self.refused: Cut | None = None
        self.reset = False
        self.closed = False

    def start(self, early: bytes, *, client_unread: bool, upstream_unread: bool) -> None:
        """Both sockets are registered already; from here on their events come to the relay. `early` are bytes that the
        client sent before there was an upstream. A socket is `unread` unless what it holds, if anything, is still to be
        reported by the loop.
        """
        self.loop.handle(self.client.fileno(), self._on_client)
        self.loop.handle(self.upstream.fileno(), self._on_upstream)
        if early:
            try:
                self.up.begin(early)
            except Cut as cut:
                self.flow_cut(self.up, cut)
                return
        if upstream_unread:
            self.down.pump()
        else:
            self.down.flush()
        if client_unread:
            self.up.pump()
        else:
            self.up.flush()

    def _on_client(self, mask: int) -> None:
        self._on_event(mask, self.up, self.down)

    def _on_upstream(self, mask: int) -> None:
        self._on_event(mask, self.down, self.up)

    def _on_event(self, mask: int, reads: Flow, writes: Flow) -> None:
        if mask & READ:
            reads.pump(more=mask & MORE != 0)
        if mask & WRITE and writes.blocked:
            writes.pump()
        if mask & GONE and not (self.closed or writes.ended) and gone(reads.source):
            # Closed, and not only half: nobody is left to read what the other end may say, however late it says it.
            writes.release()
            self.reset = True
            self._half_ended()

    def flow_waits(self, flow: Flow) -> None:
        """A ClientHello has begun: from here on it has a time limit, which more of it does not extend."""
        if not self.handshakes.has(self):
            self.handshakes.add(self, self._gate_expired)

    def _gate_expired(self) -> None:
        if self.up.filter is not None:
            self.abort()

    def flow_cut(self, flow: Flow, problem: Exception) -> None:
        """Neither end gets another byte; both are told by a reset."""
        self.refused = problem if isinstance(problem, Cut) else None
        self.abort()

    def source_failed(self, flow: Flow, error: OSError) -> None:
        """The other end is told in the same way."""
        self.error = self.error or error
        self.abort()

    def sink_failed(self, flow: Flow, error: OSError) -> None:
        """What the sink sent before it went away still gets through; this direction is over."""
        self.error = self.error or error
        self.reset = True
        try:
            flow.source.shutdown(socket.SHUT_RD)
        except OSError:
            pass
        self._half_ended()

    def flow_ended(self, flow: Flow) -> None:
        if self.up.ended and self.down.ended:
            self.close()  # which says it as well
            return
        try:
            flow.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _half_ended(self) -> None:
        if self.up.ended and self.down.ended:
            self.close()

    def abort(self) -> None:
        """Both sockets are reset and closed."""
        self.reset = True
        self.close()

    def close(self) -> None:
        """Both sockets are closed and `done` has been called; once."""
        if self.closed:
            return
        self.closed = True
        self.handshakes.drop(self)
        for flow in (self.up, self.down):
            flow.release()
            del flow.owner
            self.loop.forget(flow.source.fileno())
            if self.reset:
                linger_reset(flow.source)
            flow.source.close()
        self.done(self)


def closed_by(error: OSError) -> str:
    """How a connection failed, in a few words."""
    return error.strerror or str(error) or type(error).__name__


def gone(sock: socket.socket) -> bool:
    """True when the other end has closed its socket, as far as one can know without sending."""
    poller = select.poll()
    poller.register(sock, select.POLLHUP)
    return any(mask & select.POLLHUP for _, mask in poller.poll(0))
