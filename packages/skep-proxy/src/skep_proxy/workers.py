"""Several serving processes on the same listening sockets, and their counters added up.

The parent opens the sockets, forks, forwards signals, and starts a worker again that died. Workers end when the
parent does, however it ends: they hold the reading end of a pipe that nobody writes to.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable

import msgspec

from .engine import Stats
from .metrics import add

SLOT = 1 << 16
"""Bytes of a worker's page of counters."""

RESTART = 1.0
"""Seconds before a worker that died is started again."""


class Board:
    """One page of counters per worker, in memory they share. A page is replaced whole, its length last."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap.mmap(-1, workers * SLOT)

    def publish(self, worker: int, stats: Stats) -> Stats:
        """The worker's page is up to date. Returns the sum over all workers."""
        page = msgspec.json.encode(stats)
        if len(page) < SLOT - 4:
            at = worker * SLOT
            self._memory[at : at + 4] = bytes(4)
            self._memory[at + 4 : at + 4 + len(page)] = page
            self._memory[at : at + 4] = len(page).to_bytes(4, "big")
        total = Stats()
        for number in range(self._workers):
            total = add(total, stats if number == worker else self._read(number))
        return total

    def _read(self, worker: int) -> Stats:
        at = worker * SLOT
        length = int.from_bytes(self._memory[at : at + 4], "big")
        try:
            return msgspec.json.decode(self._memory[at + 4 : at + 4 + length], type=Stats)
        except msgspec.DecodeError:
            return Stats()  # it is being written


Work = Callable[[int, int], int]
"""(number of the worker, pipe that ends with the parent) to an exit code."""


class Crew:
    """The parent's view. `run` returns the exit code of the whole."""

    def __init__(self, workers: int, work: Work, *, may_reload: Callable[[], bool]) -> None:
        """`may_reload` is asked at each SIGHUP, once for all: what one worker refused would part it from the others."""
        self._work = work
        self._may_reload = may_reload
        self._size = workers
        self._children: dict[int, int] = {}
        self._stopping = False
        self._failed = 0

    def run(self) -> int:
        reading, writing = os.pipe()
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        for number in range(self._size):
            self._start(number, reading, writing)
        while self._children:
            caught = signal.sigwait(signals)
            if caught == signal.SIGCHLD:
                self._reap(reading, writing)
            else:
                self._stopping = self._stopping or caught != signal.SIGHUP
                if caught == signal.SIGHUP and not self._may_reload():
                    continue
                for pid in self._children:
                    os.kill(pid, caught)
        os.close(reading)
        os.close(writing)
        return self._failed

    def _start(self, number: int, reading: int, writing: int) -> None:
        pid = os.fork()
        if pid:
            self._children[pid] = number
            return
        code = 70
        try:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            code = self._work(number, reading)
        finally:
            os._exit(code)  # never back into the parent's stack

    def _reap(self, reading: int, writing: int) -> None:
        """One round: a worker that dies at once must not keep the parent from the next signal."""
        dead: list[int] = []
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number = self._children.pop(pid, None)
            if number is not None and self._stopping:
                self._failed = self._failed or os.waitstatus_to_exitcode(status)
            elif number is not None:
                dead.append(number)
        if dead:
            time.sleep(RESTART)
        for number in dead:
            self._start(number, reading, writing)
