"""Descriptors 0, 1 and 2 as a worker may have them.

What passes as it is: a terminal and an anonymous pipe. A file of the host does not: even a read-only one can be
`fchmod`ed, and an appended one can be read and cut through /proc/self/fd. It is relayed through a pipe by a thread,
with splice(2) where the kernel can. A directory is a way out of the sandbox: it becomes the sandbox's own /dev/null, as
does the host's /dev/null, whose mode root could change.

Limits: a relay reads ahead, so what follows the worker on the same standard input finds less than the worker left; and
a full disk is a closed pipe to the worker, which may have ended before it: `lost` says so.
"""

from __future__ import annotations

import errno
import os
import select
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

BLOCK = 1 << 20
NULL_DEVICE = os.makedev(1, 3)


class Relay:
    """A thread that copies between a pipe and a descriptor of the host until end-of-file, or until cancelled.

    It owns the pipe's near end, and a copy of the host's descriptor. `limit` in bytes bounds what goes to a file.
    """

    def __init__(self, source: int, sink: int, *, owned: int, copied: int, limit: int | None = None) -> None:
        import threading

        self._source, self._sink = source, sink
        self._owned, self._copied = owned, copied
        self._left = limit
        self._cancel = os.eventfd(0, os.EFD_CLOEXEC)
        self._spliced = True
        self.over_limit = False
        self.lost = 0
        self._thread = threading.Thread(target=self._run, name="skep-stdio", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, finish: bool) -> None:
        """The thread has ended and nothing is open. With `finish`, all bytes the worker wrote have arrived."""
        if not finish or not self._thread.ident:
            os.eventfd_write(self._cancel, 1)
        if self._thread.ident:
            self._thread.join()
        else:
            os.close(self._owned)
        os.close(self._copied)
        os.close(self._cancel)

    def _run(self) -> None:
        try:
            while self._wait(self._source, select.POLLIN) and self._step():
                pass
        except OSError as error:
            if error.errno != errno.EPIPE:  # the reader is gone: the worker sees a broken pipe, as without skep
                self.lost = error.errno or errno.EIO
        finally:
            os.close(self._owned)

    def _wait(self, fd: int, way: int) -> bool:
        """Something can be read, or written; False when cancelled. Regular files are always ready."""
        poll = select.poll()
        poll.register(fd, way)
        poll.register(self._cancel, select.POLLIN)
        return all(ready != self._cancel for ready, _ in poll.poll())

    def _step(self) -> bool:
        """A piece is copied; False at the end."""
        size = BLOCK if self._left is None else min(BLOCK, self._left)
        if size == 0:
            self.over_limit = os.read(self._source, 1) != b""
            return False
        try:
            moved = os.splice(self._source, self._sink, size) if self._spliced else self._copy(size)
        except BlockingIOError:  # the caller's descriptor is non-blocking
            return self._wait(self._sink, select.POLLOUT)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._spliced:
                raise
            self._spliced = False  # such as a sink opened for appending
            return True
        if self._left is not None:
            self._left -= moved
        return moved > 0

    def _copy(self, size: int) -> int:
        block = os.read(self._source, size)
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:
                if not self._wait(self._sink, select.POLLOUT):
                    return 0
        return len(block)


class Stdio:
    """The three descriptors for a worker (None: the sandbox's own /dev/null), and the relays behind them. `start` when
    the worker has them, `close` after its end. `limit` in bytes bounds what is relayed into one file.
    """

    def __init__(self, stdin: int = 0, stdout: int = 1, stderr: int = 2, *, limit: int | None = None) -> None:
        self._limit = limit
        self._inputs: list[Relay] = []
        self._outputs: list[Relay] = []
        self._far: list[int] = []
        try:
            self.stdin = self._usable(stdin, "in")
            self.stdout = self._usable(stdout, "out")
            self.stderr = self.stdout if _same(stdout, stderr) else self._usable(stderr, "out")
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """The worker has its descriptors; ours of its ends are closed, so that end-of-file travels."""
        self._close_far()
        for relay in (*self._inputs, *self._outputs):
            relay.start()

    def close(self) -> None:
        """Every byte of the worker's output is where the caller wanted it, and nothing of ours is open."""
        self._close_far()
        for relay in self._inputs:
            relay.close(finish=False)
        for relay in self._outputs:
            relay.close(finish=True)

    @property
    def over_limit(self) -> bool:
        """Whether more was written to a file than the limit allows."""
        return any(relay.over_limit for relay in self._outputs)

    @property
    def lost(self) -> int | None:
        """The error for which not all of the worker's output arrived; None when all of it did."""
        return next((relay.lost for relay in self._outputs if relay.lost), None)

    def _close_far(self) -> None:
        for fd in self._far:
            os.close(fd)
        self._far = []

    def _usable(self, fd: int, way: Literal["in", "out"]) -> int | None:
        kind = passes(fd)
        if kind == "as it is":
            return fd
        if kind == "not at all":
            return None
        opened: list[int] = []
        try:
            opened.append(host := os.dup(fd))
            read, write = os.pipe()
            opened += (read, write)
            if way == "in":
                self._inputs.append(Relay(host, write, owned=write, copied=host))
            else:
                limit = self._limit if stat.S_ISREG(os.fstat(fd).st_mode) else None
                self._outputs.append(Relay(read, host, owned=read, copied=host, limit=limit))
        except BaseException:
            for each in opened:
                os.close(each)
            raise
        far = read if way == "in" else write
        self._far.append(far)
        return far


def passes(fd: int) -> Literal["as it is", "relayed", "not at all"]:
    """How a descriptor may reach a worker. A closed one does not."""
    try:
        info = os.fstat(fd)
    except OSError:
        return "not at all"
    mode = info.st_mode
    if stat.S_ISDIR(mode):
        return "not at all"
    if stat.S_ISCHR(mode):
        if info.st_rdev == NULL_DEVICE:
            return "not at all"
        return "as it is" if os.isatty(fd) else "relayed"
    if stat.S_ISFIFO(mode) and os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
        return "as it is"
    return "relayed"


def _same(one: int, other: int) -> bool:
    """Whether both are the same open file, so that their order is kept by one relay."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino) and passes(one) == "relayed"
