"""A boundary that cannot be applied is refused and the worker never starts; beside each, the same command that runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .worker import Worker

pytestmark = pytest.mark.sandbox

REFUSING = "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
# Leaves out what was asked for, and runs the command all the same.
CARELESS = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'


def with_bwrap(worker: Worker, text: str) -> dict[str, str]:
    """An environment in which `text` is the first `bwrap` on PATH."""
    folder = worker.home / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text(text)
    (folder / "bwrap").chmod(0o755)
    return {"PATH": f"{folder}:{worker.environ()['PATH']}"}


@pytest.fixture
def mark(worker: Worker) -> Path:
    return worker.workspace / "ran"


@pytest.mark.guarantee("start-refuses")
def test_a_bwrap_that_cannot_start_is_one_line_and_no_worker(worker: Worker, mark: Path) -> None:
    done = worker.run("touch", "ran", environ=with_bwrap(worker, REFUSING))
    assert (done.returncode, done.stdout, mark.exists()) == (125, "", False)
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("skep: ")
    assert worker.run("touch", "ran").returncode == 0 and mark.exists()


@pytest.mark.guarantee("start-attested", "start-refuses")
def test_a_bwrap_that_applies_nothing_is_found_out_from_inside(worker: Worker, mark: Path) -> None:
    done = worker.run("touch", "ran", environ=with_bwrap(worker, CARELESS))
    assert (done.returncode, mark.exists()) == (125, False)
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    honest = f'#!/bin/sh\nexec {shutil.which("bwrap", path=worker.environ()["PATH"]) or "bwrap"} "$@"\n'
    (worker.home / "bin/bwrap").write_text(honest)
    assert worker.run("touch", "ran", environ={"PATH": f"{worker.home}/bin:{worker.environ()['PATH']}"}).returncode == 0


@pytest.mark.guarantee("start-strict")
@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        (("--allow", "http://example.com"), ""),
        (("--allow", "*.com"), ""),
        (("--wall", "soon"), ""),
        (("--no-such-flag",), ""),
        ((), "[netwrok]\nallow = []\n"),
        ((), "[network]\nallow = 'example.com'\n"),
        ((), "[filesystem]\nread = 'everything'\n"),
    ],
)
def test_what_is_not_understood_is_an_error_before_anything_starts(
    worker: Worker, mark: Path, flags: tuple[str, ...], policy: str
) -> None:
    file = worker.home / "policy.toml"
    file.write_text(policy)
    done = worker.run("touch", "ran", flags=("--policy", str(file), *flags))
    assert done.returncode in (2, 125) and done.stderr and not mark.exists()
    assert "Traceback" not in done.stderr
    file.write_text("[network]\nallow = ['example.com']\n")
    assert worker.run("touch", "ran", flags=("--policy", str(file), "--wall", "1m")).returncode == 0
    assert mark.exists()
