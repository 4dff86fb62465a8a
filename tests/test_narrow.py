"""On a narrow terminal the rows that skep writes end with whole words; in a pipe a line is a line."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .ptys import SKEP, Terminal

COLUMNS = 36
COMMANDS = [
    "--help",
    "run --help",
    "exec --help",
    "policy show --help",
    "workers",
    "runs",
    "review nothing",
    "policy show",
]


@pytest.mark.parametrize("words", [*COMMANDS, "exec --write nowhere-at-all -- true", "exec --preset codx -- true"])
def test_no_word_of_skeps_is_broken_over_two_rows(words: str, tmp_path: Path) -> None:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    script = f"stty -echo; echo ready; read go; $SKEP {words}; echo THE-END"
    terminal = Terminal(["/bin/sh", "-c", script], tmp_path, (24, COLUMNS), more={"COLUMNS": str(COLUMNS)})
    try:
        terminal.expect("ready\n")  # and so the size is set
        terminal.type("\n")
        told = terminal.expect("(?s)(.*)THE-END\n")[1]
        assert terminal.end() == 0
    finally:
        terminal.close()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "COLUMNS": str(COLUMNS), "TERM": "dumb"}
    argv = ["sh", "-c", f"{SKEP} {words} 2>&1"]
    piped = subprocess.run(
        argv, cwd=tmp_path / "work", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    told = re.sub(r"\x1b\[[0-9;]*m", "", told)
    assert told.split() == piped.stdout.split()
    for row in told.splitlines():
        assert len(row) <= COLUMNS or "`" in row or len(row.split()) <= 1, row
