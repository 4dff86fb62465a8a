"""`--execution-mode workspace`: the worker as a plain process in the disposable workspace, for runs that are trusted.

Nothing is enforced but the wall limit and the end of the whole tree of processes. The record says so: no layer is in
force.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

import msgspec
from skep_policy.report import Egress, Finding

from . import guardian
from .interrupts import shielded

NO_LAYERS: dict[str, bool | str] = {
    "sandbox": "off: --execution-mode workspace",
    "network": "off: --execution-mode workspace",
}
EVIDENCE = "No boundary: --execution-mode workspace runs the worker as a plain process of this user.\n"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Outcome(msgspec.Struct):
    """What became of a worker; the fields are those of `session.Outcome`."""

    exit_code: int
    limit: str | None = None
    layers: dict[str, bool | str] = msgspec.field(default_factory=lambda: dict(NO_LAYERS))
    attestation: dict[str, bool | str | int] = msgspec.field(default_factory=dict[str, bool | str | int])
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])
    egress: Egress = msgspec.field(default_factory=Egress)
    exec_error: int | None = None
    lost: bool = False
    evidence: str = EVIDENCE

    @property
    def timed_out(self) -> bool:
        return self.limit == "wall"


class Process:
    """A worker under its guardian. `signal` and `kill` from any thread and from signal handlers."""

    def __init__(self, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: int, output: int) -> None:
        self._lifeline, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            words = [os.path.realpath(sys.executable), "-I", "-S", guardian.__file__, str(theirs.fileno()), *argv]
            with shielded():
                self._process = subprocess.Popen(
                    words, stdin=stdin, stdout=output, stderr=output, cwd=cwd, env=dict(env), pass_fds=[theirs.fileno()]
                )

    def signal(self, number: int) -> None:
        try:
            self._lifeline.send(bytes((number,)))
        except OSError:
            pass  # it has ended

    def kill(self) -> None:
        try:
            self._lifeline.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def wait(self, wall: float | None, wake: int) -> Outcome:
        """Returns when nothing of the worker is left; `wall` is in seconds. `wake` is readable when a signal has come:
        one that comes just before we block would else wait for the worker's end.
        """
        limit, said = None, b""
        end = None if wall is None else time.monotonic() + wall
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        poll.register(wake, select.POLLIN)
        try:
            while True:
                left = None if end is None else max(0.0, end - time.monotonic()) * 1000
                ready = dict(poll.poll(left))
                if not ready:
                    limit, end = "wall", None
                    self.kill()
                if wake in ready:
                    os.read(wake, 512)  # the handlers have run by now
                if self._lifeline.fileno() in ready:
                    try:
                        block = self._lifeline.recv(64)
                    except ConnectionResetError:  # an order came too late for it
                        break
                    said += block
                    if not block:
                        break  # the guardian is gone, and nobody else has its end
            exit_code = self._process.wait()
            lost = exit_code < 0  # it is the guardian's own
        finally:
            self._lifeline.close()
        exec_error = int(said[1:]) if said[:1] == b"E" else None
        return Outcome(128 + signal.SIGKILL if lost else exit_code, limit, exec_error=exec_error, lost=lost)


@contextmanager
def signals(handle: Callable[[int], None]) -> Generator[int]:
    """Signals that would end skep are handled by `handle` instead; those that were ignored stay so. Yields a descriptor
    that is readable when one has come.
    """

    def handler(number: int, frame: FrameType | None) -> None:
        handle(number)

    wakes = os.pipe()
    for fd in wakes:
        os.set_blocking(fd, False)
    before = signal.set_wakeup_fd(wakes[1], warn_on_full_buffer=False)
    previous = {number: signal.getsignal(number) for number in FORWARDED}
    for number, held in previous.items():
        if held != signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield wakes[0]
    finally:
        for number, held in previous.items():
            signal.signal(number, held)
        signal.set_wakeup_fd(before)
        for fd in wakes:
            os.close(fd)


def run(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdin: int,
    output: int,
    wall: float | None,
    spawned: Callable[[Callable[[], None]], None] | None = None,
    asked: Callable[[], None] | None = None,
) -> Outcome:
    """Run `argv` to its end; nothing of it is left on return. On the main thread, since it forwards signals.

    The first signal goes to the worker, the second ends it.
    """
    process = Process(argv, cwd=cwd, env=env, stdin=stdin, output=output)
    seen: list[int] = []

    def forward(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            if asked is not None:
                asked()
            process.signal(number)
        else:
            process.kill()

    with signals(forward) as wake:
        if spawned is not None:
            spawned(process.kill)
        return process.wait(wall, wake)
