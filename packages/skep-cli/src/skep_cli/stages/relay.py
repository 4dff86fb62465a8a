"""The worker's output on its way: into the log, whole or with its middle cut out, and on to whoever watches."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

HEAD = 48 << 20
"""Bytes kept from the beginning of an output; more is of no use to a reader and fills disks."""
TAIL = 1 << 20
"""Bytes kept from its end, where the result usually stands."""
BLOCK = 1 << 16


class Relay:
    """A pipe for a worker's output. Give `fd` to the worker; `start` once it has been executed, `finish` once it is
    gone.
    """

    def __init__(
        self,
        path: Path,
        *,
        forward: Callable[[bytes], None] | None = None,
        on_failure: Callable[[OSError], None] | None = None,
        head: int = HEAD,
        tail: int = TAIL,
    ) -> None:
        self._reader, self.fd = os.pipe()
        os.set_blocking(self._reader, False)
        self._wake, self._waker = os.pipe()
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._forward = forward
        self._on_failure = on_failure
        self._head, self._tail_size = head, tail
        self._tail = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="skep-output", daemon=True)
        self.failure: OSError | None = None

    def start(self) -> None:
        """What the worker says is taken from now on; called again for each command that shares it."""
        if self._thread.ident is None:
            self._thread.start()

    def finish(self) -> None:
        """Everything written so far is in the log. Who still holds the other end is not waited for."""
        os.close(self.fd)
        os.close(self._waker)
        if self._thread.is_alive() or self._thread.ident is not None:
            self._thread.join()
        else:
            self._run()
        os.close(self._reader)
        os.close(self._wake)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        open_ended = True
        while open_ended:
            ready = {fd for fd, _ in poll.poll()}
            if self._reader in ready:
                open_ended = self._take()
            elif self._wake in ready:
                break
        self._end()

    def _take(self) -> bool:
        """Whether more may come."""
        try:
            block = os.read(self._reader, BLOCK)
        except BlockingIOError:
            return True
        if not block:
            return False
        if self._forward is not None:
            self._forward(block)
        if self.failure is None:
            try:
                self._keep(block)
            except OSError as error:
                self._failed(error)
        return True

    def _keep(self, block: bytes) -> None:
        if self._head:
            kept, block = block[: self._head], block[self._head :]
            self._head -= len(kept)
            self._write(kept)
        self._tail += block
        over = len(self._tail) - self._tail_size
        if over > self._tail_size:  # in big steps: a step per block would copy the tail each time
            self._dropped += over
            del self._tail[:over]

    def _end(self) -> None:
        try:
            over = len(self._tail) - self._tail_size
            if over > 0:
                self._dropped += over
                del self._tail[:over]
            if self.failure is None:
                if self._dropped:
                    self._write(b"\n[skep: %d bytes of output left out here]\n" % self._dropped)
                self._write(self._tail)
                os.fsync(self._log)
        except OSError as error:
            self._failed(error)
        finally:
            os.close(self._log)

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._log, view) :]

    def _failed(self, error: OSError) -> None:
        self.failure = error
        if self._on_failure is not None:
            self._on_failure(error)
