"""The controlling terminal: whose it is, and what a stop of the worker means for us."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from skep_bwrap.spawn import Sandbox
else:
    import _signal as signal  # the module around it imports enum, which takes as long as ten of ours


NO_STOP = 0.01
"""Seconds. A stop that lasts less was none: no shell continues a job that soon."""
MAX_DROPPED = 100
"""Stops of ours in a row that were none, before the worker is hung up; twice as many, and it is ended."""


def opened() -> int | None:
    """A descriptor of the controlling terminal, whoever has it now; None when there is none. The caller closes it."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None


def is_ours(tty: int) -> bool:
    """Whether our process group is in the foreground of the terminal."""
    try:
        return os.tcgetpgrp(tty) == os.getpgrp()
    except OSError:
        return False


def take_back(tty: int) -> None:
    """Our process group has the terminal when the group that has it is gone. The guardian of a sandbox sees to that;
    this is for one that was killed.
    """
    try:
        group = os.tcgetpgrp(tty)
        if group == os.getpgrp():
            return
        if not _lives(group):
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            try:
                os.tcsetpgrp(tty, os.getpgrp())
            finally:
                signal.signal(signal.SIGTTOU, before)
    except OSError:
        pass  # the terminal is gone, or the group is somebody else's


def _lives(group: int) -> bool:
    """Whether a process of the group runs; one that nobody has reaped does not."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit():
                with open(f"/proc/{entry}/stat") as stat:
                    state, _, its_group = stat.read().rpartition(")")[2].split()[:3]
                if int(its_group) == group and state not in "ZX":
                    return True
        except OSError:
            continue
    return False


def on_stop(sandbox: Sandbox) -> Callable[[int], None]:
    """What to do when the worker's process group was stopped.

    Stopped for touching a terminal that is ours to give: it gets it and goes on, as the first command of a pipeline
    would. Otherwise (Ctrl-Z, or in the background) we stop as well, the shell takes over, and when it continues us
    so does the worker. Where no shell would ever continue us (no terminal, or an orphaned process group, whose
    SIGTSTP the kernel drops), it goes on at once: a worker can stop its whole group, and would hold us up for ever.
    One that goes on to touch the terminal that nobody will give it is hung up, as the kernel does with such a group.
    """
    dropped = 0

    def stopped(number: int) -> None:
        nonlocal dropped
        tty = opened()
        if tty is not None:
            foreground = is_ours(tty)
            os.close(tty)
            touched = number in (signal.SIGTTIN, signal.SIGTTOU)
            if not foreground or not touched:
                before = time.monotonic()
                os.kill(os.getpid(), signal.SIGTSTP)
                dropped = dropped + 1 if touched and time.monotonic() - before < NO_STOP else 0
            if dropped == MAX_DROPPED:
                sandbox.signal(signal.SIGHUP)
            elif dropped > 2 * MAX_DROPPED:
                sandbox.kill()
        sandbox.resume()

    return stopped
