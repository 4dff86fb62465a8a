"""Names to addresses without holding up the engine: a few threads, started when the first name needs one."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from functools import partial

from .loop import Loop

THREADS = 32
"""Lookups at the same time. A name server that does not answer holds one for as long as the system's resolver waits."""

SHARE = 8
"""Of one listener: names below a wildcard whose name server is silent must not hold up everybody else's. Nor do those
of several listeners together: each may have one lookup on its way, beyond THREADS if need be.
"""

Resolve = Callable[[str, int], list[str]]
"""(canonical name, port) to addresses as text, best first. May block. Raises OSError."""

Answer = Callable[[list[str], OSError | None], None]


def getaddrinfo(host: str, port: int) -> list[str]:
    """What the system's resolver says, in its order, each address once."""
    found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)  # text would load a codec
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Answering:
    """One answer on its way; a fault in it is a fault of who waits for it."""

    __slots__ = ("_addresses", "_answer", "_error")

    def __init__(self, answer: Answer, addresses: list[str], error: OSError | None) -> None:
        self._answer = answer
        self._addresses = addresses
        self._error = error

    def run(self) -> None:
        self._answer(self._addresses, self._error)

    def abort(self) -> None:
        owner = getattr(self._answer, "__self__", None)
        fault = getattr(owner, "fault", None) or getattr(owner, "abort", None)
        if fault is not None:
            fault()


class _Share:
    """The lookups of one asker: how many are on their way, and what waits."""

    __slots__ = ("active", "queue")

    def __init__(self) -> None:
        self.active = 0
        self.queue: deque[tuple[str, int]] = deque()


class Resolver:
    """`lookup` answers on the loop's thread. The same name asked twice at a time by one asker is looked up once."""

    def __init__(self, loop: Loop, resolve: Resolve = getaddrinfo) -> None:
        from _queue import SimpleQueue  # the module around it imports three others

        self._loop = loop
        self._resolve = resolve
        self._asked: SimpleQueue[tuple[object, str, int] | None] = SimpleQueue()
        self._waiting: dict[tuple[object, str], list[Answer]] = {}
        self._shares: dict[object, _Share] = {}
        self._threads = 0
        self._active = 0
        self._closed = False

    def lookup(self, host: str, port: int, answer: Answer, *, asker: object = None) -> None:
        """`answer` gets addresses, or no addresses and the error."""
        waiting = self._waiting.get((asker, host))
        if waiting is not None:
            waiting.append(answer)
            return
        self._waiting[asker, host] = [answer]
        share = self._shares.get(asker)
        if share is None:
            share = self._shares[asker] = _Share()
        share.queue.append((host, port))
        self._go_on(asker, share)

    def cancel(self, host: str, answer: Answer, *, asker: object = None) -> None:
        """`answer` is not called any more."""
        waiting = self._waiting.get((asker, host))
        if waiting is not None and answer in waiting:
            waiting.remove(answer)

    def _go_on(self, asker: object, share: _Share) -> None:
        """As many lookups of one asker are on their way as may be, of those that somebody still waits for."""
        while share.queue and share.active < SHARE and (self._active < THREADS or not share.active):
            host, port = share.queue.popleft()
            if self._waiting[asker, host]:
                self._ask(share, asker, host, port)
            else:
                del self._waiting[asker, host]
        if not share.active and not share.queue:
            del self._shares[asker]

    def _ask(self, share: _Share, asker: object, host: str, port: int) -> None:
        share.active += 1
        self._active += 1
        self._asked.put((asker, host, port))
        if self._active > self._threads:
            try:
                self._start_thread()
            except RuntimeError as error:  # no thread is to be had: those there are get to it in time
                if not self._threads:
                    self._asked.get_nowait()
                    self._loop.soon(partial(self._answer, asker, host, [], OSError(str(error))))

    def _over(self, asker: object) -> None:
        """One lookup of an asker is over: others begin, its own first."""
        share = self._shares[asker]
        share.active -= 1
        self._active -= 1
        self._go_on(asker, share)
        if self._active < THREADS:
            for other, waiting in [item for item in self._shares.items() if item[1].queue]:
                self._go_on(other, waiting)
        if self._threads > max(THREADS, self._active):
            self._asked.put(None)
            self._threads -= 1

    def close(self) -> None:
        """No answer comes any more; threads end with the lookup they are in."""
        self._closed = True
        for _ in range(self._threads):
            self._asked.put(None)
        self._waiting.clear()

    def abort(self) -> None:
        """A fault in one answer is no reason to stop answering."""

    def _start_thread(self) -> None:
        from threading import Thread

        Thread(target=self._work, name="skep-proxy resolver", daemon=True).start()
        self._threads += 1

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            asker, host, port = asked
            addresses: list[str] = []
            error: OSError | None = None
            try:
                addresses = self._resolve(host, port)
            except OSError as caught:
                error = caught
            except (
                Exception
            ) as caught:  # UnicodeError of a name the codec dislikes; whatever a caller's own resolver does
                error = OSError(f"{type(caught).__name__}: {caught}")
            if self._closed:
                return
            self._loop.submit(partial(self._answer, asker, host, addresses, error))

    def _answer(self, asker: object, host: str, addresses: list[str], error: OSError | None) -> None:
        answers = self._waiting.pop((asker, host), ())
        if not self._closed:
            self._over(asker)
        for answer in answers:
            self._loop.call(_Answering(answer, addresses, error).run)
