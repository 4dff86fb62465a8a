"""A Mac for the tests beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from .stage import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
