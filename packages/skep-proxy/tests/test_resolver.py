"""Names are looked up by threads, of which there may be none to be had."""

from __future__ import annotations

from threading import Thread

import pytest
from skep_proxy.loop import Loop
from skep_proxy.resolver import Resolver


def test_a_thread_that_cannot_be_started_costs_one_answer_and_not_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    resolver = Resolver(loop, lambda host, port: ["192.0.2.1"])
    answers: list[tuple[list[str], str | None]] = []

    def answer(addresses: list[str], error: OSError | None) -> None:
        answers.append((addresses, error and str(error)))
        loop.stop()

    def refuse(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        resolver.lookup("a.test", 443, answer)
    loop.soon(lambda: resolver.lookup("a.test", 443, answer))
    loop.run()
    while len(answers) < 2:
        loop.run_submitted()
    assert answers == [([], "can't start new thread"), (["192.0.2.1"], None)]
    resolver.close()
    loop.close()
