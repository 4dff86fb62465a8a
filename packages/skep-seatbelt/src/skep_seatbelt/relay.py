"""A terminal of the worker's own, joined to the user's.

Whoever may ioctl a terminal can put words into its input queue, and Seatbelt cannot tell one ioctl from another. So the
worker never gets the user's terminal: it gets a pseudo-terminal, and bytes and window sizes are copied between the two.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import termios
import threading
import tty
from typing import Any

BLOCK = 1 << 16

LINGER = 1.0
"""Seconds without a byte after the worker's end when somebody still holds its terminal."""

PAUSE = 0.2
"""Seconds between looks whether we are in the foreground again; until then the keys are another program's."""

OFLAG = 1
"""Place of the output flags in what `termios.tcgetattr` gives."""


class Terminal:
    """A pseudo-terminal pair. `name` is the worker's side, for `compile`; `worker` its descriptor, for `spawn`."""

    def __init__(self) -> None:
        self.near, self.worker = os.openpty()
        self.name = os.ttyname(self.worker)
        self._threads: list[threading.Thread] = []
        self._saved: list[Any] | None = None
        self._user: int | None = None
        self._before: dict[int, Any] = {}
        self._raw = False
        self._stop, self._stopped = os.pipe()

    def join(self, user: int, output: int | None = None, *, reads: bool = True) -> None:
        """The worker's output is copied to `output` (or `user`). With `reads`, the user's terminal `user` is raw and
        copied into the worker's, whenever we are in its foreground.

        After this returns the worker's side is closed here, so call it when the worker has been spawned. A window size
        travels when the user's changes (from the main thread) and once at the start.
        """
        self._user = user
        self._saved = termios.tcgetattr(user)
        self.resize()
        if threading.current_thread() is threading.main_thread():
            for number, act in ((signal.SIGWINCH, self.resize), (signal.SIGCONT, self._continued)):
                self._before[number] = signal.signal(number, lambda number, frame, act=act: act())
        if reads and self._in_front():
            self._make_raw()
        if not reads:
            self._leave_lines_to_the_user()
        self._release_worker()
        work = [lambda: self._copy_out(user if output is None else output), *([self._copy_in] if reads else [])]
        for one in work:
            thread = threading.Thread(target=one, name="skep-terminal", daemon=True)
            thread.start()
            self._threads.append(thread)

    def resize(self) -> None:
        """The worker's terminal has the size of the user's."""
        if self._user is None:
            return
        try:
            size = fcntl.ioctl(self._user, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self.near, termios.TIOCSWINSZ, size)
        except OSError:
            pass

    def restore(self) -> None:
        """The user's terminal is as it was, until we read from it again."""
        if self._raw and self._user is not None and self._saved is not None:
            self._raw = False
            try:
                termios.tcsetattr(self._user, termios.TCSADRAIN, self._saved)
            except termios.error:
                pass  # it is gone

    def again(self) -> None:
        """After `restore`: the keys are the worker's again, if we are in the foreground."""
        if len(self._threads) > 1 and self._in_front():
            self._make_raw()

    def close(self) -> None:
        """All output has been copied and the user's terminal is as it was. Call it when the worker has ended."""
        self._release_worker()
        os.close(self._stopped)
        for thread in self._threads:
            thread.join()
        os.close(self._stop)
        os.close(self.near)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.restore()

    def _release_worker(self) -> None:
        if self.worker >= 0:
            os.close(self.worker)
            self.worker = -1

    def _in_front(self) -> bool:
        """Whether the keys are ours. A terminal that is not the one we were started on has no foreground to ask for."""
        assert self._user is not None
        try:
            return os.tcgetpgrp(self._user) == os.getpgrp()
        except OSError:
            return True

    def _make_raw(self) -> None:
        assert self._user is not None
        tty.setraw(self._user, termios.TCSADRAIN)
        self._raw = True

    def _continued(self) -> None:
        """The shell that stopped us has set its own modes meanwhile."""
        if self._raw and self._in_front():
            self._make_raw()

    def _leave_lines_to_the_user(self) -> None:
        """Ends of lines are made by the user's terminal, which is not raw."""
        modes = termios.tcgetattr(self.worker)
        modes[OFLAG] &= ~termios.OPOST
        termios.tcsetattr(self.worker, termios.TCSANOW, modes)

    def _copy_in(self) -> None:
        assert self._user is not None
        while True:
            if not self._in_front():
                if select.select([self._stop], [], [], PAUSE)[0]:
                    return
                continue
            if not self._raw:
                try:
                    self._make_raw()
                except termios.error:
                    return
            ready = select.select([self._user, self._stop], [], [])[0]
            if self._stop in ready or not (block := _read(self._user)):
                return
            _write(self.near, block)

    def _copy_out(self, output: int) -> None:
        while True:
            ready = select.select([self.near, self._stop], [], [])[0]
            if self._stop in ready and not select.select([self.near], [], [], LINGER)[0]:
                return
            if not (block := _read(self.near)):
                return
            _write(output, block)


def _read(fd: int) -> bytes:
    """The next bytes; none when the other side is gone, which a terminal tells as EIO."""
    try:
        return os.read(fd, BLOCK)
    except OSError:
        return b""


def _write(fd: int, block: bytes) -> None:
    view = memoryview(block)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        pass
