"""One thread, one epoll object, one callback per descriptor.

What every handler lives by:

1. Notification is edge-triggered. A handler is told once that something changed and then works until the kernel says
   EAGAIN, or yields with `soon`. So a paused reader or a paused accept never spins.
2. A wake-up may be spurious: a descriptor closed and reused within one batch is reported under its old mask. Handlers
   ask the kernel what is true and treat the mask as a hint.
3. A handler is a bound method of an object with `abort()`, or `fault()` where that means more than `abort()`. One
   that raises has found a bug of ours: its object is aborted, the fault is counted and logged, and every other
   connection lives on.
"""

from __future__ import annotations

import os
import select
import sys
from _thread import RLock
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

NEVER = float("inf")

Handler = Callable[[int], None]
Callback = Callable[[], None]

BATCH = 512
"""Descriptors reported by one wait; bounds how long a timer or a request of another thread can be late."""

if sys.platform == "linux":
    READ = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
    WRITE = select.EPOLLOUT | select.EPOLLHUP | select.EPOLLERR
    # Behind the bytes is an end to be read, or an urgent mark, at which a read stops short of what follows it.
    MORE = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR | select.EPOLLPRI
    GONE = select.EPOLLHUP  # nothing more comes and nothing more can be sent
    _INTEREST = select.EPOLLIN | select.EPOLLPRI | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLET

    class _Poller:
        """The descriptors of one loop, edge-triggered."""

        __slots__ = ("_epoll", "poll")

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self.poll = self._epoll.poll

        def add(self, fd: int) -> None:
            self._epoll.register(fd, _INTEREST)

        def remove(self, fd: int) -> None:
            try:
                self._epoll.unregister(fd)
            except (OSError, ValueError):
                pass

        def close(self) -> None:
            self._epoll.close()

else:
    READ = 1
    WRITE = 4
    MORE = 1  # not told apart: it is always looked for
    GONE = 0  # kqueue has no such thing: sending fails

    class _Poller:
        """The same over kqueue: EV_CLEAR is its edge-triggered mode."""

        __slots__ = ("_kqueue",)

        def __init__(self) -> None:
            self._kqueue = select.kqueue()

        def add(self, fd: int) -> None:
            flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR
            filters = (select.KQ_FILTER_READ, select.KQ_FILTER_WRITE)
            self._kqueue.control([select.kevent(fd, which, flags) for which in filters], 0)

        def remove(self, fd: int) -> None:
            for which in (select.KQ_FILTER_READ, select.KQ_FILTER_WRITE):
                try:
                    self._kqueue.control([select.kevent(fd, which, select.KQ_EV_DELETE)], 0)
                except OSError:
                    pass

        def poll(self, timeout: float, maxevents: int) -> list[tuple[int, int]]:
            events = self._kqueue.control(None, maxevents, None if timeout < 0 else timeout)
            return [(event.ident, READ if event.filter == select.KQ_FILTER_READ else WRITE) for event in events]

        def close(self) -> None:
            self._kqueue.close()


class Deadlines:
    """Owners that have a fixed number of seconds for something. One queue per duration, so that adding and dropping
    cost O(1) and a dropped owner is forgotten at once.
    """

    __slots__ = ("_due", "_loop", "seconds")

    def __init__(self, loop: Loop, seconds: float) -> None:
        self.seconds = seconds
        self._loop = loop
        self._due: OrderedDict[object, tuple[float, Callback]] = OrderedDict()

    def add(self, owner: object, expired: Callback) -> None:
        """`expired` is called unless the owner is dropped in time; an owner that is in already starts anew."""
        self._due.pop(owner, None)
        deadline = self._loop.now + self.seconds
        self._due[owner] = (deadline, expired)
        if deadline < self._loop.look_at:
            self._loop.look_at = deadline

    def drop(self, owner: object) -> None:
        self._due.pop(owner, None)

    def has(self, owner: object) -> bool:
        return owner in self._due

    def first(self) -> float:
        """When the next owner runs out, in the loop's time; NEVER when there is none."""
        for deadline, _ in self._due.values():
            return deadline
        return NEVER

    def expire(self, now: float) -> list[Callback]:
        """The callbacks that are due, taken out of the queue."""
        expired: list[Callback] = []
        while self._due:
            owner, (deadline, callback) = next(iter(self._due.items()))
            if deadline > now:
                break
            del self._due[owner]
            expired.append(callback)
        return expired


class Loop:
    """`run` serves until `stop`. Only `submit` and `stop` may be called from another thread."""

    def __init__(self) -> None:
        self.now = monotonic()
        self.look_at = NEVER
        """When the queues are looked at: no later than the first owner runs out, who may have been dropped since."""
        self.faults = 0
        self._handlers: dict[int, Handler] = {}
        self._ready: list[Callback] = []
        self._queues: list[Deadlines] = []
        self._submitted: deque[Callback] = deque()
        self._stopped = False
        self._over = False
        self._wake_lock = RLock()  # a signal handler may stop or submit in the middle of a submit
        self._poller = _Poller()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)
        self.register(self._wake_out, self._woken)

    def deadlines(self, seconds: float) -> Deadlines:
        """A new queue of owners that each have `seconds`."""
        queue = Deadlines(self, seconds)
        self._queues.append(queue)
        return queue

    def register(self, fd: int, handler: Handler) -> None:
        """`handler` hears of everything that happens to `fd`, beginning with how it is now. Raises OSError, and nothing
        has changed.
        """
        self._poller.add(fd)
        self._handlers[fd] = handler

    def handle(self, fd: int, handler: Handler) -> None:
        """Another handler for a registered descriptor. What was reported before is not reported again."""
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """For a descriptor that is closed next and that no other process holds: closing takes it out of epoll."""
        self._handlers.pop(fd, None)

    def unregister(self, fd: int) -> None:
        """For a descriptor whose open file others may hold, and so outlives our closing it."""
        if self._handlers.pop(fd, None) is not None:
            self._poller.remove(fd)

    def soon(self, callback: Callback) -> None:
        """`callback` runs after the descriptors that are ready now had their turn."""
        self._ready.append(callback)

    def submit(self, callback: Callback) -> bool:
        """`callback` runs on the loop's thread; False when it never will, as the loop is over. Thread-safe."""
        with self._wake_lock:
            if self._over:
                return False
            self._submitted.append(callback)
            self._wake()
        return True

    def stop(self) -> None:
        """`run` returns after the current batch. Thread-safe."""
        self._stopped = True
        with self._wake_lock:
            self._wake()

    def run(self) -> None:
        """Serve until stopped. Called once, on the thread that owns every handler."""
        poll, handlers = self._poller.poll, self._handlers
        while not self._stopped:
            events = poll(self._timeout(), BATCH)
            self.now = monotonic()
            for fd, mask in events:
                handler = handlers.get(fd)
                if handler is not None:
                    try:
                        handler(mask)
                    except Exception as error:
                        self._fault(handler, error)
            if self.now >= self.look_at:
                self._expire()
            if self._ready:
                ready, self._ready = self._ready, []
                for callback in ready:
                    self.call(callback)

    def finish(self) -> None:
        """Everything that was submitted has run, and nothing else ever will be. After `run` has returned."""
        with self._wake_lock:
            self._over = True
        while self._submitted:
            self.call(self._submitted.popleft())

    def close(self) -> None:
        """The loop's own descriptors are gone. After `finish`."""
        self._handlers.clear()
        self._poller.close()
        os.close(self._wake_out)
        os.close(self._wake_in)

    def abort(self) -> None:
        """The loop outlives a fault in its own wake-up handler."""

    def _timeout(self) -> float:
        if self._ready:
            return 0
        return -1 if self.look_at == NEVER else max(0.0, self.look_at - monotonic())

    def _expire(self) -> None:
        for queue in self._queues:
            for callback in queue.expire(self.now):
                self.call(callback)
        self.look_at = min([queue.first() for queue in self._queues])

    def _wake(self) -> None:
        """With the lock: who comes late must not write to a descriptor that is someone else's by now."""
        if not self._over:
            try:
                os.write(self._wake_in, b"\0")
            except BlockingIOError:
                pass  # full: a wake-up is on its way

    def _woken(self, _mask: int) -> None:
        try:
            while os.read(self._wake_out, 4096):
                pass
        except BlockingIOError:
            pass
        self.run_submitted()

    def run_submitted(self) -> None:
        """What had been submitted has run; not what comes meanwhile, since connections want their turn as well."""
        for _ in range(len(self._submitted)):
            self.call(self._submitted.popleft())

    def call(self, callback: Callback) -> None:
        """`callback` has run; a fault in it is its object's and not the caller's."""
        try:
            callback()
        except Exception as error:
            self._fault(callback, error)

    def _fault(self, culprit: Handler | Callback, error: Exception) -> None:
        self.faults += 1
        _log("fault in the engine, its connection is cut", error)
        owner = getattr(culprit, "__self__", None)
        abort = getattr(owner, "fault", None) or getattr(owner, "abort", None)
        if abort is not None:
            try:
                abort()
            except Exception as second:
                _log("fault while cutting a connection", second)


def _log(text: str, error: Exception) -> None:
    """A fault is told where that is possible: without a descriptor left, not even the module can be loaded."""
    try:
        import logging  # a fault is a bug; nobody pays for the import otherwise

        logging.getLogger("skep_proxy").error(text, exc_info=error)
    except Exception:  # whatever a handler of the application's raises
        pass
