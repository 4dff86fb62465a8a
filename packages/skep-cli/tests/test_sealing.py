"""Runs whose skep was killed early: gone with the next run, unless there is a record to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from skep_cli.evidence.audit import Log
from skep_cli.evidence.chain import genesis
from skep_cli.evidence.sealing import clear_dead
from skep_cli.evidence.state import RunFolder, Runs, replace


@pytest.fixture
def runs(state: Path) -> Runs:
    return Runs(state / "skep")


def killed(runs: Runs) -> RunFolder:
    """A folder whose lock nobody holds any more."""
    folder = runs.create()
    folder.lock.release(keep=True)
    return folder


def begun(folder: RunFolder, *kinds: str) -> None:
    log = Log(folder)
    for kind in kinds:
        log.append(kind, {})
    log.close()


def a_lock(folder: RunFolder) -> None:
    """And nothing else."""


def an_empty_log(folder: RunFolder) -> None:
    folder.log.touch()


def a_head(folder: RunFolder) -> None:
    begun(folder)


def a_line_ahead_of_the_head(folder: RunFolder) -> None:
    begun(folder, "begun")
    replace(folder.head, b'{"count":0,"hash":"%s"}\n' % genesis(folder.id).encode())


@pytest.mark.parametrize("left", [a_lock, an_empty_log, a_head, a_line_ahead_of_the_head])
def test_a_run_that_died_before_its_first_record_goes_whole(runs: Runs, left: Callable[[RunFolder], None]) -> None:
    folder = killed(runs)
    left(folder)
    clear_dead(runs)
    assert not folder.path.exists()


def test_a_record_that_does_not_hold_is_kept(runs: Runs) -> None:
    folder = killed(runs)
    begun(folder, "begun", "policy")
    folder.head.unlink()
    clear_dead(runs)
    assert folder.log.exists()


def test_a_run_that_is_alive_is_left_alone(runs: Runs) -> None:
    folder = runs.create()
    clear_dead(runs)
    assert folder.path.exists()
    folder.lock.release()
