"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stage import make_repo


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
