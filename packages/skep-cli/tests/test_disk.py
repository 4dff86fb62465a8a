"""A disk that is filled, by a command, a worker, a setup or a verification, is told with the flag. It has 64MiB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .stage import PLAIN, make_repo

pytestmark = pytest.mark.sandbox

FILL = "sh -c 'head -c 45000000 /dev/zero > fill; exec sleep 100'"
WRITE = "sh -c 'head -c 15000000 /dev/zero > fill; rm fill; echo x > f; sleep 1'"
TOLD = "a disk it writes on had less left than the disk-free limit wants; --disk-free lowers it"


@pytest.fixture
def home() -> Iterator[Path]:
    """Not below /tmp, which is the sandbox's own."""
    folder = Path(tempfile.mkdtemp(prefix=".skep-disk-", dir=Path.home()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def on_a_small_disk(home: Path, folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    """skep with its state, and with `disk` as its current folder, on a tmpfs."""
    disk = home / "disk"
    disk.mkdir(exist_ok=True)
    inner = 'mount -t tmpfs -o size=64m none "$0" && cd "$1" && shift && exec "$@"'
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    argv = [*unshare, "sh", "-c", inner, str(disk), str(home / folder), sys.executable, "-m", "skep_cli", *words]
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(disk), **PLAIN}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_a_command(home: Path) -> None:
    done = on_a_small_disk(home, "disk", "exec", "--", "sh", "-c", FILL[7:-1])
    assert done.returncode == 137 and f"skep: {TOLD}\n" in done.stderr
    done = on_a_small_disk(home, "disk", "exec", "--", "sh", "-c", WRITE[7:-1])
    assert (done.returncode, done.stderr) == (0, "")
    less = FILL[7:-1].replace("45", "15")
    done = on_a_small_disk(home, "disk", "exec", "--disk-free", "60MiB", "--", "sh", "-c", less)
    assert done.returncode == 137 and f"skep: {TOLD}\n" in done.stderr


def test_a_disk_with_less_left_than_was_asked_for_starts_nothing(home: Path) -> None:
    done = on_a_small_disk(home, "disk", "exec", "--disk-free", "65MiB", "--", "touch", "ran")
    assert done.returncode == 125 and done.stdout == "" and done.stderr.startswith("skep: limits.disk-free: ")
    assert "MiB left, and 65MiB are to be left; make room there, or lower it with --disk-free" in done.stderr


@pytest.mark.parametrize(
    ("worker", "more"),
    [(FILL, ()), (WRITE, ("--setup", FILL)), (WRITE, ("--verify", FILL))],
    ids=["worker", "setup", "verification"],
)
def test_a_run(home: Path, worker: str, more: tuple[str, ...]) -> None:
    repo = make_repo(home / "repo", {"f": "f\n"})
    done = on_a_small_disk(home, "repo", "run", str(repo), "t", "--worker", worker, *more)
    assert done.returncode == 1 and TOLD in done.stderr, done.stderr


def test_a_run_that_leaves_enough(home: Path) -> None:
    repo = make_repo(home / "repo", {"f": "f\n"})
    done = on_a_small_disk(home, "repo", "run", str(repo), "t", "--worker", WRITE, "--setup", "true", "--verify", WRITE)
    assert done.returncode == 0 and "verification passed" in done.stderr, done.stderr
