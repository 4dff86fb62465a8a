"""Fixtures of the command line's tests."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .stage import make_repo
from .yard import Registry, Yard


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """What XDG_STATE_HOME would be."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a function that subtracts, a check that wants it to add, and ignore rules."""
    return make_repo(
        tmp_path / "repo",
        {
            "calc.py": "def add(a, b):\n    return a - b\n",
            "check.sh": "python3 -c 'import calc; assert calc.add(1, 2) == 3'\n",
            ".gitignore": "__pycache__/\n.venv/\nbuild/\n*.log\n",
        },
    )


@pytest.fixture
def yard() -> Iterator[Yard]:
    """Where a sandbox can start; a skip where none can."""
    base = Path(tempfile.mkdtemp(prefix=".skep-test-", dir=Path.home()))
    made = Yard(base)
    started = made.exec("true")
    if started.returncode and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield made
    subprocess.run(["rm", "-rf", base], check=True)


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()
