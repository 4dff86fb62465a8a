"""How much is measured, and where what is needed for it is kept."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True)
class Size:
    """`seconds` is for one figure of a proxy, `rounds` how often, `starts` how often a program is started, `row` the
    launches of the library in a row, `budget` the seconds for one comparison of starts.
    """

    seconds: float
    rounds: int
    idle: Sequence[int]
    starts: int
    row: int
    budget: float
    files: Sequence[int]

    def but(self, given: Mapping[str, Any]) -> Size:
        """The same with other values for some fields."""
        return replace(self, **given)


FULL = Size(seconds=1.5, rounds=3, idle=(0, 1000, 5000), starts=40, row=1000, budget=120, files=(1000, 10_000, 100_000))
TINY = Size(seconds=0.2, rounds=1, idle=(0, 20, 50), starts=2, row=8, budget=20, files=(20, 100))


class Settings(AbstractContextManager["Settings"]):
    """What one command is to measure, and its scratch folder, which is gone when the block ends."""

    def __init__(self, size: Size, *, cache: Path, only: Sequence[str], quiet: bool) -> None:
        self.size = size
        self.cache = cache
        self._only = only
        self._quiet = quiet
        cache.mkdir(parents=True, exist_ok=True)
        # Not below /tmp: that is private in a sandbox, and some will not keep their state there.
        self.scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=cache))

    @property
    def seconds(self) -> float:
        return self.size.seconds

    @property
    def rounds(self) -> int:
        return self.size.rounds

    @property
    def idle(self) -> Sequence[int]:
        return self.size.idle

    def wants(self, name: str) -> bool:
        """Ours are always measured; others when none is named, or this one is."""
        return not self._only or name.startswith("skep") or any(name.startswith(one) for one in self._only)

    def fresh_folder(self) -> Path:
        """A path in the scratch folder that does not exist yet."""
        return Path(tempfile.mkdtemp(dir=self.scratch)) / "site"

    def say(self, line: str) -> None:
        """Progress, for who waits."""
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
