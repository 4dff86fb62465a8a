"""A test that hangs, or that leaves the process to the others in another state, is a failure that can be read, and
those others run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HANGING = """
import subprocess, threading, time
import pytest

def test_waits_for_a_process():
    subprocess.run(["sleep", "4321"])

def test_cleans_up_without_end():
    try:
        threading.Event().wait()
    finally:
        time.sleep(1000)

@pytest.fixture
def stuck():
    yield
    threading.Event().wait()

def test_has_a_fixture_that_is_stuck(stuck):
    pass

def test_is_fine():
    pass
"""


def test_what_hangs_fails_and_says_where_and_the_others_run(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    text = (tmp_path / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(text.replace("AGAIN = 60.0", "AGAIN = 0.5"))
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hanging.py"]
    environ = {**os.environ, "SKEP_TEST_LIMIT": "0.5"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert "2 failed, 2 passed, 1 error in" in done.stdout, done.stdout
    assert done.stdout.count("Failed: not done after 0.5 seconds") >= 3
    assert " sleep 4321" in done.stdout and 'subprocess.run(["sleep", "4321"])' in done.stdout


LEAVING = """
import os, signal
import pytest

def test_blocks_a_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

def test_goes_elsewhere(tmp_path):
    os.chdir(tmp_path)
    os.environ["LEFT"] = "x"

def test_puts_all_back(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFT", "x")

def test_finds_what_the_first_one_found():
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) and "LEFT" not in os.environ and os.listdir() != []
"""


def test_what_leaves_the_process_in_another_state_fails_and_the_others_do_not(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_leaving.py").write_text(LEAVING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_leaving.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "4 passed, 2 errors in" in done.stdout, done.stdout
    for changed in ("blocked_signals", "folder, environment"):
        assert f"would not find what this one found: {changed}\n" in done.stdout
