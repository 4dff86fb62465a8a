"""A warm process that runs `true` with the library, in a row and several at a time, and the same with raw bwrap.

Run as a program: `python -m benchmarks.library COUNT` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypedDict

from skep_bwrap import run
from skep_policy import Facts, Layer, merge, parse_policy, resolve

from .measure import cost_of, median, pss
from .sandboxes import floors

AT_ONCE = 8
WARMING = 5


class Found(TypedDict):
    """Seconds per command; descriptors and bytes of this process before and after all of it."""

    ours: float
    bwrap: float
    ours_at_once: float
    bwrap_at_once: float
    descriptors: tuple[int, int]
    memory: tuple[int, int]


def compare(count: int) -> Found:
    """`count` launches each way."""
    facts = Facts.gather()
    boundary = resolve(
        merge([Layer("benchmark", parse_policy("", source="benchmark"))]), facts=facts, workspace=facts.cwd
    )
    null = os.open("/dev/null", os.O_RDWR)
    raw = next(one for one in floors() if one.name.startswith("bwrap,")).argv
    environ = dict(os.environ)

    def one() -> float:
        began = time.perf_counter()
        outcome = run(boundary, ["true"], stdin=null, stdout=null)
        if outcome.exit_code != 0:
            raise SystemExit(f"the command ended with {outcome.exit_code}")
        return time.perf_counter() - began

    def bare() -> float:
        return cost_of(raw, environ, log="/dev/null").wall

    for _ in range(WARMING):
        one()
        bare()
    before = _descriptors(), pss([os.getpid()])
    ours: list[float] = []
    others: list[float] = []
    for _ in range(count):
        ours.append(one())
        others.append(bare())
    at_once = _at_once(one, count), _at_once(bare, count)
    after = _descriptors(), pss([os.getpid()])
    return {
        "ours": median(ours),
        "bwrap": median(others),
        "ours_at_once": at_once[0],
        "bwrap_at_once": at_once[1],
        "descriptors": (before[0], after[0]),
        "memory": (before[1], after[1]),
    }


def _at_once(action: Callable[[], float], count: int) -> float:
    """Seconds per command when AT_ONCE threads share `count` of them."""

    def work() -> None:
        for _ in range(max(1, count // AT_ONCE)):
            action()

    threads = [threading.Thread(target=work) for _ in range(AT_ONCE)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - began) / (max(1, count // AT_ONCE) * AT_ONCE)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    print(json.dumps(compare(int(sys.argv[1]))))
