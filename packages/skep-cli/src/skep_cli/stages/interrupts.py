"""Signals that ask skep to end, from the first moment of a run to its last.

An exception out of a signal handler strikes anywhere, in the middle of what must not be left half done. So a handler
counts and no more, but where that is said to be harmless (`breakable`), and there once: what cleans up after it is left
alone. While a worker runs its launch has handlers of its own.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ONE_WISH = 2.0
"""Seconds. Who hits Ctrl-C twice means the worker, and not also the patch that is taken once it has ended."""


@contextmanager
def shielded() -> Generator[None]:
    """What is started in here has the signals blocked: Ctrl-C on a terminal goes to every process of its group, to one
    that has not left it yet too, and what that means is for us to say.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Ending(BaseException):
    """A signal asked skep to end. No Exception, so that nothing takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interrupts:
    """Handlers for all of NUMBERS that were not ignored, from entering it on, for good: a run that was begun says how
    it ended, whatever comes meanwhile. On the main thread.
    """

    def __init__(self) -> None:
        self.last: int | None = None
        """The last signal that came here."""
        self._armed = self._wanted = self._raised = False
        self._warn: Callable[[], None] | None = None
        self._warned = float("-inf")

    def install(self) -> None:
        global _current
        _current = self
        for number in NUMBERS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)

    def ignore(self) -> None:
        """All has been said: the status of this process is what it exits with, also while Python takes itself down."""
        for number in NUMBERS:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.last = number
        if self._warn is not None:
            self._warned = time.monotonic()
            warn, self._warn = self._warn, None
            warn()
        elif self._armed and time.monotonic() - self._warned > ONE_WISH:
            self._wanted = True
            if not held.depth:
                self.check()

    def breakable(self, *, warn: Callable[[], None] | None = None) -> Breakable:
        """A block that a signal ends with `Ending`. With `warn` the first one is a call of it, and the second one, a
        while later, ends the block; without, one that came before the block ends it too.
        """
        return Breakable(self, warn)

    def arm(self, warn: Callable[[], None] | None) -> None:
        self._wanted = warn is None and self.last is not None
        self._warn, self._armed, self._raised = warn, True, False
        self.check()

    def disarm(self, error: BaseException | None) -> None:
        """The block is left with an error, or none. Raises Ending when that was raised in it and is not what came of
        it: code below takes any exception for a failure of its own, or for none.
        """
        self._armed = False
        self._warn = None
        if self._raised and self.last is not None and not isinstance(error, Ending):
            raise Ending(self.last) from None

    def check(self) -> None:
        """Raise Ending when a signal wanted it, in a block that can be ended."""
        if self._armed and self._wanted and self.last is not None:
            self._armed = False
            self._raised = True
            raise Ending(self.last)


class Breakable:
    def __init__(self, interrupts: Interrupts, warn: Callable[[], None] | None) -> None:
        self._interrupts = interrupts
        self._warn = warn

    def __enter__(self) -> None:
        self._interrupts.arm(self._warn)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._interrupts.disarm(error)


class _Held:
    """A block, inside one that can be ended, at the end of which that happens: a process is being started."""

    depth = 0

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if threading.current_thread() is threading.main_thread():
            self.depth -= 1
            if kind is None and _current is not None:
                _current.check()


held = _Held()
_current: Interrupts | None = None
