from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .stage import Stage, staged


@pytest.fixture(scope="session")
def stage(sandbox_starts: None) -> Iterator[Stage]:
    base = Path(tempfile.mkdtemp(prefix=".skep-test-", dir=Path.home()))
    with staged(base) as made:
        yield made
    subprocess.run(["rm", "-rf", base], check=True)
