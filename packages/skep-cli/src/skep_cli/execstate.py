"""What an agent run by `skep exec --preset` finds of its own state: copies for this one command, removed after it.

Whoever has copies holds the lock beside them; what a skep that was killed has left is held by nobody, and the next one
removes it.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from skep_policy.facts import Facts

from . import agentstate
from .evidence.lock import Lock
from .presets import Preset
from .workspace.removal import remove

LOCK = ".lock"


class Copies:
    """Copies of one preset's state. `variables` names the folders, by the variables that lead there."""

    def __init__(self, preset: Preset, facts: Facts) -> None:
        """Raises OSError, and nothing has been copied."""
        kept = Path(facts.state_dir, "exec")
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left(kept)
        self._lock, self._folder = _claimed(kept)
        try:
            remove(self._folder)  # of somebody who was killed and had our number
            self._laid = agentstate.lay_out(agentstate.owned(preset.head.state, facts), self._folder)
        except BaseException:
            self._end()  # a login may be in there already
            raise
        self.variables = self._laid.variables

    def remove(self) -> list[str]:
        """Returns a line for each login that was renewed inside, which is lost."""
        lines = [f"{source}: {agentstate.RENEWED}" for source in agentstate.renewed(self._laid)]
        self._end()
        return lines

    def _end(self) -> None:
        remove(self._folder)
        self._lock.release()


def _claimed(kept: Path) -> tuple[Lock, Path]:
    """A folder that is ours, not made yet, and its lock, held."""
    for number in count():
        name = f"{os.getpid()}-{number}"
        lock = Lock(kept / (name + LOCK))
        if lock.take(wait=False):
            return lock, kept / name
    raise AssertionError


def _remove_left(kept: Path) -> None:
    """No copies are there that nobody holds. A lock comes before its folder, and goes after it."""
    for name in {left.name.removesuffix(LOCK) for left in kept.iterdir()}:
        lock = Lock(kept / (name + LOCK))
        if lock.take(wait=False):
            remove(kept / name)
            lock.release()
