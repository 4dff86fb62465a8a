"""What a `Sandbox` says to its guardian, the other ends of its sockets held by the test."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest
from skep_bwrap.spawn import Sandbox


class Early(list[int]):
    """Signals that came before the worker ran; the first is kept while somebody else has time to let it run."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.seen = threading.Event(), threading.Event()

    def append(self, number: int) -> None:
        super().append(number)
        self.kept.set()
        self.seen.wait(0.3)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGWINCH])
def test_a_signal_that_comes_while_the_worker_begins_is_delivered_once(number: signal.Signals) -> None:
    control, shim = socket.socketpair()
    lifeline, guardian = socket.socketpair()
    with control, shim, lifeline, guardian:
        sandbox = Sandbox(control, lifeline, lambda: None, os.open(os.devnull, os.O_RDONLY))  # type: ignore[arg-type]
        early = Early()
        sandbox._early = early  # pyright: ignore[reportPrivateUsage]
        sender = threading.Thread(target=sandbox.signal, args=(number,))
        sender.start()
        assert early.kept.wait(30)
        shim.sendall(b"ready\n")
        shim.shutdown(socket.SHUT_WR)
        assert sandbox.begin()
        early.seen.set()
        sender.join()
        sandbox.signal(signal.SIGUSR2)
        assert guardian.recv(64) == b"s" + bytes((number,)) + b"s" + bytes((signal.SIGUSR2,))
