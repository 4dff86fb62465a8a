from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .escapes.worker import Worker


@pytest.fixture(scope="session")
def sandbox_starts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A machine that cannot start a sandbox skips with its reason, or fails where it must be able to."""
    done = Worker(tmp_path_factory.mktemp("probe")).run("true")
    if done.returncode == 0:
        return
    if done.returncode != 125 or os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.fail(done.stderr)
    pytest.skip(done.stderr.strip())


@pytest.fixture
def worker(sandbox_starts: None) -> Iterator[Worker]:
    base = Path(tempfile.mkdtemp(prefix=".skep-test-", dir=Path.home()))
    yield Worker(base)
    # Not shutil.rmtree: what the worker made may be unreadable for its owner.
    subprocess.run(["chmod", "-R", "u+rwX", base], check=True)
    subprocess.run(["rm", "-rf", base], check=True)
