"""Descriptors 0, 1 and 2 as a worker may have them.

What passes as it is: a terminal, an anonymous pipe, and /dev/null. A file of the host does not: even a read-only one
can be
`fchmod`ed, and an appended one can be read and cut through /proc/self/fd. It is relayed through a pipe by a thread,
with splice(2) where the kernel can. A directory is a way out of the sandbox, and is replaced by /dev/null.
"""

from __future__ import annotations

import os
import stat
from typing import Literal

BLOCK = 1 << 20


class Relay:
    """A thread that copies between a pipe and a descriptor of the host until end-of-file. It owns the pipe's near
    end.
    """

    def __init__(self, source: int, sink: int, *, owned: int) -> None:
        import threading

        self._source, self._sink, self._owned = source, sink, owned
        self._thread = threading.Thread(target=self._run, name="skep-stdio", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """All bytes the worker wrote have arrived."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._copy()
        except OSError:
            pass  # the reader is gone; the worker sees a broken pipe, as without skep
        finally:
            os.close(self._owned)

    def _copy(self) -> None:
        # Into a file, splice(2) writes at the position it found before it waited: over what others wrote meanwhile.
        if not stat.S_ISREG(os.fstat(self._sink).st_mode):
            try:
                while os.splice(self._source, self._sink, BLOCK):
                    pass
                return
            except OSError as error:
                if error.errno != 22:  # EINVAL: no splice here
                    raise
        while block := os.read(self._source, BLOCK):
            view = memoryview(block)
            while view:
                view = view[os.write(self._sink, view) :]


class Stdio:
    """The three descriptors for a worker, and the relays behind them. `start` after the spawn, `close` after its
    end.
    """

    def __init__(self, stdin: int = 0, stdout: int = 1, stderr: int = 2) -> None:
        self._relays: list[Relay] = []
        self._outputs: list[Relay] = []
        self._far: list[int] = []
        self.stdin = self._usable(stdin, "in")
        self.stdout = self._usable(stdout, "out")
        self.stderr = self.stdout if _same(stdout, stderr) else self._usable(stderr, "out")

    def start(self) -> None:
        """The worker has its descriptors; ours of its ends are closed, so that end-of-file travels."""
        for fd in self._far:
            os.close(fd)
        self._far = []
        for relay in self._relays:
            relay.start()

    def close(self) -> None:
        """Every byte of the worker's output is where the caller wanted it."""
        for fd in self._far:
            os.close(fd)
        self._far = []
        for relay in self._outputs:
            relay.join()

    def _usable(self, fd: int, way: Literal["in", "out"]) -> int:
        kind = passes(fd)
        if kind == "as it is":
            return fd
        if kind == "not at all":
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            self._far.append(null)
            return null
        read, write = os.pipe()
        if way == "in":
            self._relays.append(Relay(fd, write, owned=write))
            self._far.append(read)
            return read
        relay = Relay(read, fd, owned=read)
        self._relays.append(relay)
        self._outputs.append(relay)
        self._far.append(write)
        return write


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
        return "as it is" if os.isatty(fd) or info.st_rdev == os.makedev(1, 3) else "relayed"
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
