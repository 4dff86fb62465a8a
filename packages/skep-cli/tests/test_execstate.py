"""Copies of an agent's own state for one command."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from skep_cli.execstate import Copies
from skep_cli.presets import Head, Preset, State
from skep_policy import Facts, Policy

LARGEST = 1000
PRESET = Preset("x", "built-in", Head(("x",), state={"~/.x": State("X_HOME", ("login", "settings"))}), Policy())


@contextmanager
def files_of_at_most(size: int) -> Generator[None]:
    """A file system on which nothing larger can be written, for root too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    (tmp_path / ".x/settings").mkdir(parents=True)
    (tmp_path / ".x/login").write_text("secret")
    (tmp_path / ".x/settings/large").write_bytes(bytes(2 * LARGEST))
    return Facts(str(tmp_path), "u", os.getuid(), os.getgid(), str(tmp_path), {})


def test_copies_are_there_until_they_are_removed(facts: Facts) -> None:
    copies = Copies(PRESET, facts)
    folder = Path(copies.variables["X_HOME"])
    assert (folder / "login").read_text() == "secret" and (folder / "settings/large").stat().st_size == 2 * LARGEST
    assert copies.remove() == [] and list(Path(facts.state_dir, "exec").iterdir()) == []


def test_what_a_killed_skep_left_is_removed_and_what_another_holds_is_not(facts: Facts, tmp_path: Path) -> None:
    kept = Path(facts.state_dir, "exec")
    first = Copies(PRESET, facts)
    second = Copies(PRESET, facts)  # as of another thread
    assert first.variables != second.variables and Path(first.variables["X_HOME"], "login").exists()
    # a number that lives, but is not of who made these copies
    for name in (str(os.getpid()), str(os.getppid()), "1-0", "1-1.lock"):
        (kept / name).write_text("") if name.endswith(".lock") else (kept / name).mkdir()
    Copies(PRESET, facts).remove()
    assert {path.name.partition("-")[0] for path in kept.iterdir()} == {str(os.getpid())}
    first.remove()
    assert Path(second.variables["X_HOME"], "login").exists()
    second.remove()
    assert list(kept.iterdir()) == []


def test_a_copy_that_fails_names_its_file_and_leaves_no_login_behind(facts: Facts) -> None:
    with files_of_at_most(LARGEST), pytest.raises(OSError, match=r"cannot be copied.*File too large") as failed:
        Copies(PRESET, facts)
    assert failed.value.filename == f"{facts.home}/.x/settings/large"
    assert list(Path(facts.state_dir, "exec").iterdir()) == []
