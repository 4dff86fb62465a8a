"""Pipes through which splice moves bytes between sockets."""

from __future__ import annotations

import os
import sys

PIPE_SIZE = 1 << 18
"""Bytes of a pipe where the kernel lets us ask: 64 pages, so that 256 pipes fit an ordinary user's quota of 16384."""

FREE_PIPES = 32
"""Pipes kept for reuse: one per direction that has bytes in flight at the same moment is enough."""

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

    __slots__ = ("_free", "enabled")

    def __init__(self, *, enabled: bool = HAS_SPLICE) -> None:
        self.enabled = enabled
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int] | None:
        """An empty pipe; None where there is no splice or no descriptor is left."""
        if not self.enabled:
            return None
        if self._free:
            return self._free.pop()
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
            pipe = self._free.pop()
            os.close(pipe[0])
            os.close(pipe[1])
