"""What is told of a run while it goes on, in the order in which it happened."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from skep_cli.evidence.state import RunFolder, Runs
from skep_cli.screen.status import Status
from skep_cli.stages.order import Hooks, Order, Outcome, Place
from skep_cli.stages.pipeline import Pipeline

from .stage import Plain, order


class Waiting(Plain):
    """Hears of each command's start only once it has said something."""

    def __init__(self, order: Order, fifo: Path) -> None:
        super().__init__(order, 60.0)
        self.fifo = fifo

    def _late(self, hooks: Hooks) -> Hooks:
        def spawned(kill: Callable[[], None]) -> None:
            hooks.spawned(kill)
            self.fifo.read_bytes()

        return msgspec.structs.replace(hooks, spawned=spawned)

    def setup(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        return super().setup(folder, place, argv, output, self._late(hooks))

    def worker(
        self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
    ) -> Outcome:
        return super().worker(folder, place, argv, env, output, self._late(hooks))

    def verifier(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        return super().verifier(folder, place, argv, output, self._late(hooks))


@pytest.mark.parametrize("what", ["setup", "worker", "verify"])
def test_what_a_command_says_stands_below_the_line_that_it_has_started(
    state: Path, repo: Path, tmp_path: Path, what: str
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = f"echo said by {{}}; echo > {fifo}"
    words = {one: ["sh", "-c", script.format(one)] for one in ("setup", "worker", "verify")}
    given = order(repo, words["worker"], setup=(("the setup", words["setup"]),))
    given = msgspec.structs.replace(given, verify=words["verify"], verify_text="the check")
    with open(tmp_path / "told", "w+b") as file:
        status = Status(fd=file.fileno(), output=file.fileno())
        done, folder = Pipeline(given, Waiting(given, fifo), Runs(state / "skep"), status).go()
        file.seek(0)
        told = file.read().decode()
    assert done.verification.outcome == "passed"
    before = {"setup": "setup: the setup", "worker": "worker started: sh", "verify": "verifying: the check"}[what]
    assert told.index(before) < told.index(f"said by {what}\n"), told
    assert (folder.path / f"{what}.log").read_text() == f"said by {what}\n"
