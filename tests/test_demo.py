"""`skep demo` as the README shows it: the same steps with the same ends, whatever ports and names they had."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from .escapes.worker import SKEP, Worker
from .readme import code_blocks

ROOT = Path(__file__).parents[1]


def steps(transcript: str) -> list[str]:
    """The lines of a transcript without what differs from one machine and run to the next."""
    text = re.sub(r"/\S*python[\d.]*", "python3", transcript)
    text = re.sub(r"localhost:\d+", "localhost:PORT", text)
    for run in re.findall(r"skep approve (\S+)", text):
        text = text.replace(run, "RUN")
    text = re.sub(r"\([0-9a-f]{12}\)|[0-9a-f]{40}", "COMMIT", text)
    text = re.sub(r"in force: .*", "in force: LAYERS", text)
    return [line.rstrip() for line in text.splitlines() if "it saw:" not in line]


@pytest.mark.sandbox
def test_the_demo_goes_as_the_readme_shows(worker: Worker) -> None:
    [shown] = [block for block in code_blocks(ROOT / "README.md") if block.mark == "transcript: demo"]
    done = subprocess.run(
        [SKEP, "demo"], cwd=worker.workspace, env=worker.environ(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert steps(done.stdout) == steps(shown.text)


@pytest.mark.sandbox
def test_the_demo_fails_loudly_without_the_boundary(worker: Worker) -> None:
    command = [SKEP, "demo", "--execution-mode", "workspace"]
    done = subprocess.run(
        command, cwd=worker.workspace, env=worker.environ(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "GOT THROUGH" in done.stdout and "DID NOT HOLD" in done.stdout
