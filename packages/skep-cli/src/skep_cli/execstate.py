"""What an agent run by `skep exec --preset` finds of its own state: copies for this one command, removed after it.

A skep that was killed leaves its copies; the next one removes what belongs to no living process.
"""

from __future__ import annotations

import os
from pathlib import Path

from skep_policy.facts import Facts

from . import agentstate
from .presets import Preset
from .workspace.removal import remove


class Copies:
    """Copies of one preset's state. `variables` names the folders, by the variables that lead there."""

    def __init__(self, preset: Preset, facts: Facts) -> None:
        """Raises OSError, and nothing has been copied."""
        kept = Path(facts.state_dir, "exec")
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in kept.iterdir():
            if not _lives(left.name):
                remove(left)
        self._folder = kept / str(os.getpid())
        try:
            self._laid = agentstate.lay_out(agentstate.owned(preset.head.state, facts), self._folder)
        except BaseException:
            remove(self._folder)  # a login may be in there already
            raise
        self.variables = self._laid.variables

    def remove(self) -> list[str]:
        """Returns a line for each login that was renewed inside, which is lost."""
        lines = [f"{source}: {agentstate.RENEWED}" for source in agentstate.renewed(self._laid)]
        remove(self._folder)
        return lines


def _lives(name: str) -> bool:
    if not name.isdigit() or int(name) == os.getpid():
        return False
    try:
        os.kill(int(name), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
