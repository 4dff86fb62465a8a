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

BLOCK = 1 << 16


class Terminal:
    """A pseudo-terminal pair. `name` is the worker's side, for `compile`; `worker` its descriptor, for `spawn`."""

    def __init__(self) -> None:
        self.near, self.worker = os.openpty()
        self.name = os.ttyname(self.worker)
        self._threads: list[threading.Thread] = []
        self._saved: list[object] | None = None
        self._user: int | None = None
        self._before: object = None
        self._stop, self._stopped = os.pipe()

    def join(self, user: int, output: int | None = None) -> None:
        """The user's terminal `user` is raw and copied into the worker's, the worker's output to `output` (or `user`).

        After this returns the worker's side is closed here, so call it when the worker has been spawned. A window size
        travels when the user's changes (from the main thread) and once at the start.
        """
        self._user = user
        self._saved = termios.tcgetattr(user)
        self.resize()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGWINCH, lambda number, frame: self.resize())
        tty.setraw(user)
        self._release_worker()
        for work in (self._copy_in, lambda: self._copy_out(user if output is None else output)):
            thread = threading.Thread(target=work, name="skep-terminal", daemon=True)
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

    def close(self) -> None:
        """All output has been copied and the user's terminal is as it was. Call it when the worker has ended."""
        self._release_worker()
        for thread in self._threads[1:]:
            thread.join()
        os.close(self._stopped)
        for thread in self._threads[:1]:
            thread.join()
        os.close(self._stop)
        os.close(self.near)
        if self._before is not None:
            signal.signal(signal.SIGWINCH, self._before)  # pyright: ignore[reportArgumentType]
        if self._user is not None and self._saved is not None:
            termios.tcsetattr(self._user, termios.TCSADRAIN, self._saved)  # pyright: ignore[reportArgumentType]

    def _release_worker(self) -> None:
        if self.worker >= 0:
            os.close(self.worker)
            self.worker = -1

    def _copy_in(self) -> None:
        assert self._user is not None
        while True:
            ready = select.select([self._user, self._stop], [], [])[0]
            if self._stop in ready or not (block := _read(self._user)):
                return
            _write(self.near, block)

    def _copy_out(self, output: int) -> None:
        while block := _read(self.near):
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
