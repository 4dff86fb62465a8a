"""Names to addresses without holding up the engine: a few threads, started when the first name needs one."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from .loop import Loop

THREADS = 16
"""Lookups at the same time. A name server that does not answer holds one for as long as the system's resolver waits."""

Resolve = Callable[[str, int], list[str]]
"""(canonical name, port) to addresses as text, best first. May block. Raises OSError."""

Answer = Callable[[list[str], OSError | None], None]


def getaddrinfo(host: str, port: int) -> list[str]:
    """What the system's resolver says, in its order, each address once."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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


class Resolver:
    """`lookup` answers on the loop's thread. The same name asked twice at a time is looked up once."""

    def __init__(self, loop: Loop, resolve: Resolve = getaddrinfo) -> None:
        from queue import SimpleQueue

        self._loop = loop
        self._resolve = resolve
        self._asked: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        self._waiting: dict[str, list[Answer]] = {}
        self._threads = 0
        self._closed = False

    def lookup(self, host: str, port: int, answer: Answer) -> None:
        """`answer` gets addresses, or no addresses and the error."""
        waiting = self._waiting.get(host)
        if waiting is not None:
            waiting.append(answer)
            return
        self._waiting[host] = [answer]
        self._asked.put((host, port))
        if len(self._waiting) > self._threads and self._threads < THREADS:
            try:
                self._start_thread()
            except RuntimeError as error:  # no thread is to be had: those there are get to it in time
                if not self._threads:
                    self._asked.get_nowait()
                    self._loop.soon(partial(self._answer, host, [], OSError(str(error))))

    def cancel(self, host: str, answer: Answer) -> None:
        """`answer` is not called any more."""
        waiting = self._waiting.get(host)
        if waiting is not None and answer in waiting:
            waiting.remove(answer)

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
            addresses: list[str] = []
            error: OSError | None = None
            try:
                addresses = self._resolve(*asked)
            except OSError as caught:
                error = caught
            except (
                Exception
            ) as caught:  # UnicodeError of a name the codec dislikes; whatever a caller's own resolver does
                error = OSError(f"{type(caught).__name__}: {caught}")
            if self._closed:
                return
            self._loop.submit(partial(self._answer, asked[0], addresses, error))

    def _answer(self, host: str, addresses: list[str], error: OSError | None) -> None:
        for answer in self._waiting.pop(host, ()):
            self._loop.call(_Answering(answer, addresses, error).run)
