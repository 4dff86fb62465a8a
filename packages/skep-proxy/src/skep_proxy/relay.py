"""Bytes between two sockets, both ways, until both have ended.

Bulk moves with splice through a pipe and is never seen by Python; where there is no splice, or no descriptor left for
a pipe, it is copied through one bounded buffer. A pipe is held only while bytes are on their way, so an idle tunnel
costs two descriptors and no buffer.

- Half-close: the end of one direction is passed on when its last byte is, and the other direction lives on.
- A reset is passed on as a reset.
- Backpressure: at most one pipe, or one buffer, is in flight per direction; the rest waits in the kernel of who sent
  it.
- No idle limit: streams may be silent for as long as both ends like.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Protocol

from skep_policy.verdict import BUDGET, Verdict

from .loop import READ, WRITE, Deadlines, Loop

CHUNK = 1 << 20
"""Bytes asked of one splice; the pipe's capacity is what bounds it."""

PIPE_SIZE = 1 << 18
"""Bytes of a pipe where the kernel lets us ask; larger ones gained nothing and cost ordinary users their page quota."""

COPY = 1 << 16
"""Bytes of one read where there is no splice."""

TURN = 4 << 20
"""Bytes a direction may move before the others get their turn."""

FREE_PIPES = 32
"""Pipes kept for reuse: one per direction that has bytes in flight at the same moment is enough."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes close() send a reset."""

if sys.platform == "linux":
    import fcntl

    HAS_SPLICE = True

    def _new_pipe() -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        except OSError:
            pass  # an ordinary user's pipe quota is used up; the default size works too
        return ends
else:
    HAS_SPLICE = False

    def _new_pipe() -> tuple[int, int]:
        raise OSError("no splice on this system")


class Pipes:
    """Empty pipes for splice, reused."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int] | None:
        """An empty pipe; None where there is no splice or no descriptor is left."""
        if self._free:
            return self._free.pop()
        if not HAS_SPLICE:
            return None
        try:
            return _new_pipe()
        except OSError:
            return None

    def give(self, pipe: tuple[int, int], *, empty: bool) -> None:
        """The pipe is kept when it is empty and wanted, else closed."""
        if empty and len(self._free) < FREE_PIPES:
            self._free.append(pipe)
        else:
            os.close(pipe[0])
            os.close(pipe[1])

    def close(self) -> None:
        while self._free:
            self.give(self._free.pop(), empty=False)


class Cut(Exception):
    """A gate or a budget ends the tunnel. `host` is what the verdict is about."""

    def __init__(self, verdict: Verdict, host: str | None = None) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.host = host


class Gate(Protocol):
    """Looks at the first bytes of a direction."""

    def feed(self, data: bytes) -> bytes | None:
        """All bytes so far when they may pass; None to see more. Raises Cut."""
        ...

    def end(self) -> bytes:
        """The source ended before the gate was content: what may still pass. Raises Cut."""
        ...


class Allowance:
    """Bytes that may still go to one destination, shared by its tunnels."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Half:
    """One direction of a relay."""

    __slots__ = ("allowance", "ended", "gate", "held", "moved", "pending", "pipe", "relay", "sink", "source", "waiting")

    def __init__(self, relay: Relay, source: socket.socket, sink: socket.socket, pending: bytes) -> None:
        self.relay = relay
        self.source = source
        self.sink = sink
        self.pending: bytes | memoryview = pending
        self.pipe: tuple[int, int] | None = None
        self.held = 0
        self.moved = 0
        self.ended = False
        self.waiting = False
        self.gate: Gate | None = None
        self.allowance: Allowance | None = None

    def abort(self) -> None:
        self.relay.abort()

    def resume(self) -> None:
        self.waiting = False
        if not self.ended:
            self.pump()

    def pump(self) -> None:
        """Move bytes until the source has no more, the sink takes no more, or the turn is over."""
        turn = 0
        relay = self.relay
        try:
            while True:
                if (self.pending and not self._send_pending()) or (self.held and not self._empty_pipe()):
                    return
                if turn >= TURN:
                    if not self.waiting:
                        self.waiting = True
                        relay.loop.soon(self.resume)
                    return
                moved = self._fill()
                if moved < 0:
                    return
                if moved == 0:
                    self._end()
                    return
                turn += moved
        except Cut as cut:
            relay.cut(cut)
        finally:
            if self.pipe is not None and not self.held:
                relay.pipes.give(self.pipe, empty=True)
                self.pipe = None

    def release(self) -> None:
        """The pipe and whatever is in it are gone."""
        self.ended = True
        if self.pipe is not None:
            self.relay.pipes.give(self.pipe, empty=not self.held)
            self.pipe = None

    def _fill(self) -> int:
        """Bytes taken from the source, 0 at its end, -1 when it has none now or has failed."""
        limit = CHUNK
        if self.allowance is not None:
            limit = min(CHUNK, self.allowance.left)
            if limit == 0:
                return self._overdrawn()
        try:
            if self.gate is not None:
                moved = self._inspect(self.gate, limit)
            else:
                if self.pipe is None:
                    self.pipe = self.relay.pipes.take()
                if self.pipe is None:
                    data = self.source.recv(min(COPY, limit))
                    self.pending, moved = data, len(data)
                else:
                    moved = self.held = os.splice(self.source.fileno(), self.pipe[1], limit)
        except BlockingIOError:
            return -1
        except OSError as error:
            self.relay.failed(error, self.sink)
            return -1
        self.moved += moved
        if self.allowance is not None:
            self.allowance.left -= moved
        return moved

    def _inspect(self, gate: Gate, limit: int) -> int:
        data = self.source.recv(min(COPY, limit))
        if not data:
            self.pending = gate.end()
            self.gate = None
            if self.pending and not self._send_pending():
                return -1
            return 0
        self.through_gate(data)
        return len(data)

    def through_gate(self, data: bytes) -> None:
        """`data` is pending, or kept by the gate until it has seen enough. Raises Cut."""
        if self.gate is None:
            self.pending = data
            return
        passed = self.gate.feed(data)
        if passed is None:
            self.relay.handshakes.add(self.relay, self.relay.gate_expired)
        else:
            self.relay.handshakes.drop(self.relay)
            self.gate = None
            self.pending = passed

    def _overdrawn(self) -> int:
        try:
            if not self.source.recv(1, socket.MSG_PEEK):
                return 0
        except BlockingIOError:
            return -1
        except OSError as error:
            self.relay.failed(error, self.sink)
            return -1
        raise Cut(Verdict(allow=False, reason=BUDGET))

    def _send_pending(self) -> bool:
        try:
            sent = self.sink.send(self.pending)
        except BlockingIOError:
            return False
        except OSError as error:
            self._sink_failed(error)
            return False
        self.pending = memoryview(self.pending)[sent:] if sent < len(self.pending) else b""
        return not self.pending

    def _empty_pipe(self) -> bool:
        pipe = self.pipe
        assert pipe is not None
        try:
            while self.held:
                self.held -= os.splice(pipe[0], self.sink.fileno(), self.held)
        except BlockingIOError:
            return False
        except OSError as error:
            self._sink_failed(error)
            return False
        return True

    def _sink_failed(self, error: OSError) -> None:
        """What the sink sent before it went away still gets through; this direction is over."""
        self.release()
        self.held = 0
        self.pending = b""
        relay = self.relay
        relay.error = relay.error or error
        try:
            self.source.shutdown(socket.SHUT_RD)
        except OSError:
            pass
        relay.half_ended()

    def _end(self) -> None:
        self.ended = True
        try:
            self.sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self.relay.half_ended()


class Relay:
    """Owns both sockets from `start` on and closes them before it calls `done`.

    `up` is from the client, `down` to it. `refused` is the Cut that ended it, `error` the first failure of a socket.
    """

    __slots__ = ("closed", "done", "down", "error", "handshakes", "loop", "pipes", "refused", "reset", "up")

    def __init__(
        self,
        loop: Loop,
        pipes: Pipes,
        handshakes: Deadlines,
        client: socket.socket,
        upstream: socket.socket,
        *,
        to_client: bytes = b"",
        done: Callable[[Relay], None],
    ) -> None:
        self.loop = loop
        self.pipes = pipes
        self.handshakes = handshakes
        self.up = Half(self, client, upstream, b"")
        self.down = Half(self, upstream, client, to_client)
        self.done = done
        self.error: OSError | None = None
        self.refused: Cut | None = None
        self.reset = False
        self.closed = False

    def start(self, early: bytes, *, gate: Gate | None = None, allowance: Allowance | None = None) -> None:
        """Both sockets are registered already; from here on their events come to the relay. `early` are bytes that the
        client sent before there was an upstream.
        """
        up = self.up
        up.gate, up.allowance = gate, allowance
        self.loop.handle(up.source.fileno(), self.on_client)
        self.loop.handle(up.sink.fileno(), self.on_upstream)
        if early:
            if allowance is not None and len(early) > allowance.left:
                self.cut(Cut(Verdict(allow=False, reason=BUDGET)))
                return
            up.moved += len(early)
            if allowance is not None:
                allowance.left -= len(early)
            try:
                up.through_gate(early)
            except Cut as cut:
                self.cut(cut)
                return
        self.down.pump()
        if not up.ended:
            up.pump()

    def on_client(self, mask: int) -> None:
        self._on(mask, self.up, self.down)

    def on_upstream(self, mask: int) -> None:
        self._on(mask, self.down, self.up)

    def _on(self, mask: int, reads: Half, writes: Half) -> None:
        if mask & READ and not (reads.ended or reads.waiting):
            reads.pump()
        if mask & WRITE and (writes.held or writes.pending) and not (writes.ended or writes.waiting):
            writes.pump()

    def gate_expired(self) -> None:
        if self.up.gate is not None:
            self.abort()

    def cut(self, cut: Cut) -> None:
        """Neither end gets another byte; both are told by a reset."""
        self.refused = cut
        self.reset = True
        self.close()

    def failed(self, error: OSError, other: socket.socket) -> None:
        """One socket failed while it was read: the other end is told in the same way."""
        self.error = self.error or error
        self.reset = True
        self.close()

    def half_ended(self) -> None:
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
        for half in (self.up, self.down):
            half.release()
            half.held = 0
        for sock in (self.up.source, self.up.sink):
            self.loop.forget(sock.fileno())
            if self.reset:
                linger_reset(sock)
            sock.close()
        self.done(self)


def linger_reset(sock: socket.socket) -> None:
    """Closing the socket sends a reset."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except OSError:
        pass
