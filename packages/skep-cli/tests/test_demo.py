"""The demo ends well because the boundary holds, and only then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .stage import PLAIN, skep


@pytest.mark.sandbox
def test_with_the_boundary_every_attempt_is_stopped_and_nothing_is_left(state: Path) -> None:
    done = skep(state, "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stopped: ") == 7 and "GOT THROUGH" not in done.stdout
    assert "it got an answer" in done.stdout and ": passed" in done.stdout and "branch skep/" in done.stdout
    assert os.listdir(state) == ["home"] and os.listdir(state / "home") == []


def test_without_the_boundary_attempts_get_through_and_the_demo_fails_loudly(state: Path) -> None:
    done = skep(state, "demo", "--execution-mode", "workspace")
    assert done.returncode == 1 and "THE BOUNDARY DID NOT HOLD" in done.stdout
    assert done.stdout.count("GOT THROUGH") == 4
    for what in ("write to a file outside", "service on this machine", "Unix socket", "read a key"):
        assert what in done.stderr
    assert os.listdir(state / "home") == []


def test_a_demo_that_is_stopped_leaves_nothing(state: Path) -> None:
    home = state / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(state), **PLAIN}
    words = [sys.executable, "-m", "skep_cli", "demo", "--execution-mode", "workspace"]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    while b"The run" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and errors == b"skep: interrupted\n"
    assert os.listdir(state / "home") == []


@pytest.mark.sandbox
def test_the_throwaway_folder_is_kept_when_asked_for(state: Path) -> None:
    done = skep(state, "demo", "--keep")
    assert done.returncode == 0, done.stderr
    (kept,) = (state / "home/.cache/skep").iterdir()
    assert f"kept: {kept}" in done.stdout and (kept / "home/repo/.git").is_dir()


@pytest.mark.sandbox
def test_a_boundary_that_cannot_start_is_exit_125_and_one_line(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bwrap").write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    (folder / "bwrap").chmod(0o755)
    done = skep(state, "demo", env={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert done.returncode == 125 and len(done.stderr.splitlines()) == 1, done.stderr
    assert os.listdir(state / "home") == []
