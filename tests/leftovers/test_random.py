"""Any of skep's processes killed at any microsecond of the start: whatever the moment was, nothing is left.

The moments come from a seed, which a failure names. SKEP_LEFTOVERS=all does twenty times as many, seeded by the clock.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import pytest

from .processes import send, tree_of
from .stand import Stand, stand

pytestmark = pytest.mark.sandbox

ALL = os.environ.get("SKEP_LEFTOVERS") == "all"
ROUNDS = 20
SEEDS = [time.time_ns() + number for number in range(20)] if ALL else [20_261_130]
LETHAL = (*(signal.SIGKILL,) * 6, signal.SIGABRT, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP)
"""Without SIGINT, of which a Python that has not yet begun with anybody's program makes a traceback of its own."""


@pytest.mark.guarantee("gone-processes", "gone-files")
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{SEEDS.index(seed)}")
def test_nothing_is_left_at_whatever_moment_of_the_start_they_are_killed(sandbox_starts: None, seed: int) -> None:
    chance = random.Random(seed)
    window = 0.0
    for number in range(ROUNDS):
        mode = chance.choice(("exec", "allow", "library"))
        base = Path(tempfile.mkdtemp(prefix=".skep-left-", dir=Path.home()))
        with stand(base, mode) as it:
            it.start("worker")
            if not window:
                before = time.monotonic()
                it.reach("worker")
                window = 1.5 * (time.monotonic() - before)
            else:
                time.sleep(chance.random() * window)
            killed = strike(it, chance)
            left = it.end(alone=False)
            where = f"round {number} of seed {seed}, {mode}, {killed}: {left}"
            assert "Traceback" not in left.said, where
            assert left.code != 0 or left.done, where
            assert left.code != 125 or "skep: " in left.said, where
            if it.on_disk():
                assert it.free(it.argv(free=True)).returncode == 0
            assert it.on_disk() == [], where
            assert it.unexpected() == [], where


def strike(it: Stand, chance: random.Random) -> list[tuple[int, str]]:
    """Some of the processes there are get a signal each, in any order, as fast as can be."""
    assert it.skep is not None
    there = tree_of(it.skep.pid)[:5]
    chance.shuffle(there)
    chosen = [(pid, chance.choice(LETHAL)) for pid in there[: chance.randint(1, len(there))]]
    for pid, number in chosen:
        send(pid, number)
    return [(pid, number.name) for pid, number in chosen]
