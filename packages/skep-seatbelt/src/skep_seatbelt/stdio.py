"""Descriptors 0, 1 and 2 as a worker may have them.

What passes as it is: an anonymous pipe. A terminal becomes the worker's own (`relay.Terminal`). A file, a named pipe, a
socket or a device of the host is relayed through a pipe by a thread: nobody knows which calls on an open descriptor a
profile judges, and `fchmod` is one. A folder becomes /dev/null, as does what is closed.

Limits: a relay reads ahead, so what follows the worker on the same standard input, or types ahead on its terminal, may
find less than the worker left; and a full disk is a closed pipe to the worker, which may have ended before it: `lost`
says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import threading
from typing import Literal

from .relay import Terminal

BLOCK = 1 << 16

PATH_MAX = 1024

LINGER = 1.0
"""Seconds without a byte after the worker's end when somebody still holds its output: a process that outran its end."""

Kind = Literal["as it is", "terminal", "relayed", "not at all"]


class Relay:
    """A thread that copies between a pipe and a descriptor of the host until end-of-file, or until cancelled.

    It owns `near`, the pipe's end; the other descriptor stays the caller's. `limit` in bytes bounds what is copied.
    """

    def __init__(self, source: int, sink: int, *, near: int, limit: int | None = None) -> None:
        self._source, self._sink, self._near = source, sink, near
        self._left = limit
        self.over_limit = False
        self.lost = 0
        self._cancelled, self._cancel = os.pipe()
        self._finish = False
        self._thread = threading.Thread(target=self._run, name="skep-stdio", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, finish: bool) -> None:
        """The thread has ended and nothing is open. With `finish`, all bytes the worker wrote have arrived."""
        self._finish = finish
        os.close(self._cancel)
        if self._thread.ident:
            self._thread.join()
        else:
            os.close(self._near)
        os.close(self._cancelled)

    def _run(self) -> None:
        try:
            while self._waits_for(self._source, select.POLLIN) and (block := os.read(self._source, BLOCK)):
                if self._left is not None:
                    self.over_limit = len(block) > self._left
                    block = block[: self._left]
                    self._left -= len(block)
                if not self._write(block) or self.over_limit:
                    break
        except OSError as error:
            if error.errno != errno.EPIPE:  # the reader is gone: the worker sees a broken pipe, as without skep
                self.lost = error.errno or errno.EIO
        finally:
            os.close(self._near)

    def _write(self, block: bytes) -> bool:
        """Whether all of it was written; not when cancelled."""
        view = memoryview(block)
        while view:
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:  # the caller's descriptor is non-blocking
                if not self._waits_for(self._sink, select.POLLOUT):
                    return False
        return True

    def _waits_for(self, fd: int, way: int) -> bool:
        """Something can be read, or written; False when cancelled. Regular files are always ready."""
        poll = select.poll()
        poll.register(fd, way)
        poll.register(self._cancelled, select.POLLIN)
        if all(ready != self._cancelled for ready, _ in poll.poll()):
            return True
        poll.unregister(self._cancelled)
        return self._finish and bool(poll.poll(LINGER * 1000 if way == select.POLLIN else None))


class Stdio:
    """The three descriptors for a worker, and what stands behind them. `start` when the worker has them, `close` after
    its end. `terminal` is the worker's own, when one of the three was a terminal. `limit` in bytes bounds what is
    relayed into one file.
    """

    def __init__(self, stdin: int = 0, stdout: int = 1, stderr: int = 2, *, limit: int | None = None) -> None:
        self._limit = limit
        self.terminal: Terminal | None = None
        self._given = (stdin, stdout, stderr)
        self._inputs: list[Relay] = []
        self._outputs: list[Relay] = []
        self._far: list[int] = []
        try:
            if any(kind_of(fd) == "terminal" for fd in self._given):
                self.terminal = Terminal()
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
        if self.terminal is not None and self.user is not None:
            output = next((fd for fd in self._given[1:] if kind_of(fd) == "terminal"), self.user)
            self.terminal.join(self.user, output, reads=self.user == self._given[0])

    @property
    def user(self) -> int | None:
        """The first of the given descriptors that is the user's terminal."""
        return next((fd for fd in self._given if kind_of(fd) == "terminal"), None)

    def close(self) -> None:
        """Every byte of the worker's output is where the caller wanted it, nothing of ours is open, and the user's
        terminal is as it was.
        """
        self._close_far()
        for relay in self._inputs:
            relay.close(finish=False)
        for relay in self._outputs:
            relay.close(finish=True)
        if self.terminal is not None:
            self.terminal.close()
            self.terminal = None

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

    def _usable(self, fd: int, way: Literal["in", "out"]) -> int:
        kind = kind_of(fd)
        if kind == "as it is":
            return fd
        if kind == "terminal":
            assert self.terminal is not None
            return self.terminal.worker
        if kind == "not at all":
            self._far.append(null := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            return null
        read, write = os.pipe()
        if way == "in":
            self._inputs.append(Relay(fd, write, near=write))
        else:
            limit = self._limit if stat.S_ISREG(os.fstat(fd).st_mode) else None
            self._outputs.append(Relay(read, fd, near=read, limit=limit))
        far = read if way == "in" else write
        self._far.append(far)
        return far


def kind_of(fd: int) -> Kind:
    """How a descriptor may reach a worker. A closed one does not."""
    try:
        info = os.fstat(fd)
    except OSError:
        return "not at all"
    if stat.S_ISDIR(info.st_mode) or _is_null(info):
        return "not at all"
    if os.isatty(fd):
        return "terminal"
    return "as it is" if stat.S_ISFIFO(info.st_mode) and not _has_a_name(fd) else "relayed"


def _is_null(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == os.stat(os.devnull).st_rdev


def _has_a_name(fd: int) -> bool:
    """Whether a pipe stands in the file system."""
    if sys.platform != "darwin":
        return not os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    try:
        fcntl.fcntl(fd, fcntl.F_GETPATH, b"\0" * PATH_MAX)
    except OSError:
        return False
    return True


def _same(one: int, other: int) -> bool:
    """Whether both are the same open file, so that their order is kept by one relay."""
    try:
        first, second = os.fstat(one), os.fstat(other)
    except OSError:
        return False
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino) and kind_of(one) == "relayed"
