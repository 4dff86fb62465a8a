"""The controlling terminal: whose it is, and what a stop of the worker means for us."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skep_bwrap.spawn import Sandbox


def controlling() -> int | None:
    """A descriptor of the controlling terminal when our process group has it; None otherwise. The caller closes it."""
    try:
        tty = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(tty) == os.getpgrp():
            return tty
    except OSError:
        pass
    os.close(tty)
    return None


def on_stop(sandbox: Sandbox) -> Callable[[int], None]:
    """What to do when the worker's process group was stopped.

    Stopped for touching a terminal that is ours to give: it gets it and goes on, as the first command of a pipeline
    would. Otherwise (Ctrl-Z, or in the background) we stop as well, the shell takes over, and when it continues us
    so does the worker.
    """

    def stopped(number: int) -> None:
        tty = controlling()
        if tty is not None:
            os.close(tty)
        if tty is None or number not in (signal.SIGTTIN, signal.SIGTTOU):
            os.kill(os.getpid(), signal.SIGSTOP)
        sandbox.resume()

    return stopped
