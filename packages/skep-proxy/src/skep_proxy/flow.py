"""Bytes one way between two sockets: all of them, or a body of known length, or what a filter makes of them.

Bulk moves with splice through a pipe and is never seen by Python; where there is no splice, or no descriptor left for a
pipe, it is copied through one bounded buffer. A pipe is held only while bytes are on their way. At most one pipe, or
one buffer, is in flight; the rest waits in the kernel of who sent it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from skep_policy import Verdict
from skep_policy.verdict import BUDGET

from .loop import Loop
from .pipes import Pipes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

CHUNK = 1 << 20
"""Bytes asked of one splice; the pipe's capacity is what bounds it."""

COPY = 1 << 16
"""Bytes of one read where there is no splice."""

SMALL = 1 << 14
"""Bytes of a read that tells whether a pipe is worth while. One that brings less has emptied a TCP socket (epoll(7)).
Neither has a splice that brings less, as a pipe may be full of small packets; nor has a read of a Unix socket, which
ends behind bytes that descriptors came with.
"""

TURN = 4 << 20
"""Bytes a direction may move before the others get their turn."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes close() send a reset."""


class Cut(Exception):
    """A filter or a budget ends the flow. `host` is what the verdict is about, None for the flow's own target."""

    def __init__(self, verdict: Verdict, host: str | None = None) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.host = host


class Truncated(ConnectionError):
    """The source ended before the body did."""


if TYPE_CHECKING:

    class Filter(Protocol):
        """Sees the bytes of a flow before they are passed on.

        After each call `state` says how to go on: "more" to see the next bytes as well, "open" when the rest may pass
        unseen, "done" when the flow is complete; then `rest` holds the bytes that came after its end.
        """

        state: str
        rest: bytes

        def feed(self, data: bytes) -> bytes:
            """What may be passed on by now. Raises Cut, or what the owner of the flow understands."""
            ...

        def end(self) -> bytes:
            """The same when the source has ended. Raises Cut or Truncated."""
            ...


class Allowance:
    """Bytes that may still go to one destination, shared by its connections. `limit` may be changed."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    @property
    def left(self) -> int:
        return max(0, self.limit - self.spent)

    def charge(self, count: int) -> None:
        """Take `count` bytes out of it. Raises Cut when there are not that many."""
        if count > self.left:
            raise Cut(Verdict(allow=False, reason=BUDGET))
        self.spent += count


if TYPE_CHECKING:

    class Owner(Protocol):
        """Who a flow works for; hears of its end once."""

        def flow_ended(self, flow: Flow) -> None:
            """Everything was delivered."""
            ...

        def source_failed(self, flow: Flow, error: OSError) -> None: ...

        def sink_failed(self, flow: Flow, error: OSError) -> None: ...

        def flow_cut(self, flow: Flow, problem: Exception) -> None:
            """The filter or the budget raised."""
            ...

        def flow_waits(self, flow: Flow) -> None:
            """The filter keeps back what it has seen until it sees more."""
            ...


class Flow:
    """Pump it whenever its source may be readable or its sink writable. `moved` counts what came from the source."""

    __slots__ = (
        *(
            "_bulk",
            "_copies",
            "_drained",
            "_held",
            "_loop",
            "_pending",
            "_pipe",
            "_pipes",
            "_tcp",
            "_yielded",
            "allowance",
            "ended",
            "filter",
        ),
        *("finished", "moved", "owner", "remaining", "rest", "sink", "source"),
    )

    def __init__(
        self,
        loop: Loop,
        pipes: Pipes,
        owner: Owner,
        source: socket.socket,
        sink: socket.socket,
        *,
        first: bytes = b"",
        remaining: int | None = None,
        filter: Filter | None = None,
        allowance: Allowance | None = None,
        tcp: bool = False,
    ) -> None:
        """`first` goes to the sink before anything of the source and is not counted. `remaining` bytes are the whole
        flow; None: until the source ends. `tcp` says that the source is known to be a TCP socket.
        """
        self._loop = loop
        self._pipes = pipes
        self._pending: bytes | memoryview = first
        self._pipe: tuple[int, int] | None = None
        self._held = 0
        self._copies = False
        self._bulk = False
        self._drained = False
        self._tcp = tcp
        self._yielded = False
        self.owner = owner
        self.source = source
        self.sink = sink
        self.remaining = remaining
        self.filter = filter
        self.allowance = allowance
        self.moved = 0
        self.rest = b""
        self.finished = remaining == 0
        self.ended = False

    @property
    def blocked(self) -> bool:
        """True when bytes wait for the sink."""
        return bool(self._held or self._pending)

    def begin(self, data: bytes) -> None:
        """`data` was read from the source before the flow began; what is not part of it is left in `rest`. Raises
        like the filter, and Cut.
        """
        if self.remaining is not None:
            data, self.rest = data[: self.remaining], data[self.remaining :]
        if data:
            if self.allowance is not None:
                self.allowance.charge(len(data))
            self._take(data)

    def abort(self) -> None:
        """For the loop: a fault in a flow is a fault of its owner."""
        self.owner.source_failed(self, ConnectionAbortedError("fault"))

    def pump(self, *, more: bool = True) -> None:
        """Move bytes until the source has no more, the sink takes no more, or the turn is over. Without `more`, the
        caller has just been told of bytes, and of no end or urgent mark: then a read that empties the socket is the
        last, since whatever comes after that report makes a report of its own.
        """
        if self.ended or self._yielded:
            return
        turn = 0
        self._drained = False
        try:
            while not (self._pending or self._held) or self._flush():
                if self.finished:
                    self.release()
                    self.owner.flow_ended(self)
                    return
                if self._drained and not more:
                    return
                if turn >= TURN:
                    self._yielded = True
                    self._loop.soon(self._resume)
                    return
                moved = self._fill()
                if moved < 0:
                    return
                turn += moved
        except (Cut, ValueError) as problem:
            self.release()
            self.owner.flow_cut(self, problem)
        finally:
            if self._pipe is not None and not self._held:
                self._pipes.give(self._pipe, empty=True)
                self._pipe = None

    def flush(self) -> None:
        """What waits for the sink is sent, as far as it goes; nothing is read."""
        if not self.ended:
            self._flush()

    def release(self) -> None:
        """Over: nothing moves any more, and the pipe with whatever is in it is gone."""
        self.ended = True
        if self._pipe is not None:
            self._pipes.give(self._pipe, empty=not self._held)
            self._pipe = None
        self._held = 0
        self._pending = b""

    def _resume(self) -> None:
        self._yielded = False
        self.pump()

    def _flush(self) -> bool:
        """True when nothing waits for the sink."""
        try:
            if self._pending:
                sent = self.sink.send(self._pending)
                if sent < len(self._pending):
                    self._pending = memoryview(self._pending)[sent:]
                    return False
                self._pending = b""
            while self._held:
                assert self._pipe is not None
                self._held -= os.splice(self._pipe[0], self.sink.fileno(), self._held)
        except BlockingIOError:
            return False
        except OSError as error:
            if self._held and self._cannot_splice(error):
                return self._flush()
            self.release()
            self.owner.sink_failed(self, error)
            return False
        return True

    def _fill(self) -> int:
        """Bytes taken from the source, or -1 when it has none now or has failed. Sets `finished`."""
        limit = CHUNK if self.remaining is None else min(CHUNK, self.remaining)
        try:
            if self.allowance is not None and self.allowance.left < limit:
                limit = self.allowance.left
                if limit == 0:
                    limit = len(self.source.recv(1, socket.MSG_PEEK))
                    self.allowance.charge(limit)
            moved = self._splice(limit) if self._bulk and self.filter is None else None
            if moved is None:
                moved = self._read(limit)
        except BlockingIOError:
            return -1
        except OSError as error:
            self.release()
            self.owner.source_failed(self, error)
            return -1
        if moved == 0:
            return self._source_ended()
        self.moved += moved
        if self.allowance is not None:
            self.allowance.spent += moved
        if self.remaining is not None:
            self.remaining -= moved
            self.finished = self.remaining == 0
        return moved

    def _splice(self, limit: int) -> int | None:
        """None when it has to be copied."""
        if self._copies:
            return None
        if self._pipe is None:
            self._pipe = self._pipes.take()
        if self._pipe is None:
            return None
        try:
            self._held = os.splice(self.source.fileno(), self._pipe[1], limit)
        except OSError as error:
            if not self._cannot_splice(error):
                raise
            return None
        return self._held

    def _read(self, limit: int) -> int:
        size = min(COPY if self._bulk else SMALL, limit)
        data = self.source.recv(size)
        if not data:
            return 0
        self._bulk = len(data) == size
        self._drained = self._tcp and len(data) < size
        if self.filter is None:
            self._pending = data
        else:
            self._filtered(self.filter, self.filter.feed(data))
        return len(data)

    def _cannot_splice(self, error: OSError) -> bool:
        """True when a kernel, or what plays one, cannot do it at all, or not for this pair: from here on this flow
        copies, beginning with what is in the pipe.
        """
        if error.errno not in (errno.EINVAL, errno.ENOSYS):
            return False
        if error.errno == errno.ENOSYS:
            self._pipes.enabled = False
        self._copies = True
        while self._pipe is not None and self._held:
            data = os.read(self._pipe[0], self._held)
            self._held -= len(data)
            self._pending = bytes(self._pending) + data
        return True

    def _take(self, data: bytes) -> None:
        self.moved += len(data)
        if self.remaining is not None:
            self.remaining -= len(data)
            self.finished = self.remaining == 0
        if self.filter is not None:
            self._filtered(self.filter, self.filter.feed(data))
        else:
            self._pending = bytes(self._pending) + data

    def _filtered(self, filter: Filter, passed: bytes) -> None:
        self._pending = bytes(self._pending) + passed if self._pending else passed
        if filter.state == "more":
            self.owner.flow_waits(self)
            return
        self.filter = None
        if filter.state == "done":
            self.finished = True
            self.rest = filter.rest

    def _source_ended(self) -> int:
        if self.remaining is not None:
            self.release()
            self.owner.source_failed(self, Truncated("the sender went away before the end of the body"))
            return -1
        if self.filter is not None:
            try:
                self._pending = self.filter.end()
            except Truncated as error:
                self.release()
                self.owner.source_failed(self, error)
                return -1
        self.finished = True
        return 0


def linger_reset(sock: socket.socket) -> None:
    """Closing the socket sends a reset."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except OSError:
        pass
