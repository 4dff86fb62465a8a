"""The commands a CI log and a curious reader use."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from skep_seatbelt.__main__ import main

GOLDEN = str(Path(__file__).with_name("golden") / "filtered.sb")


@pytest.mark.parametrize(
    ("words", "code", "out"),
    [
        (["allows", GOLDEN, "file-write-data", "/Users/u/repo/f"], 0, "allow\n"),
        (["allows", GOLDEN, "file-write-data", "/Users/u/f"], 1, "deny\n"),
        (["allows", GOLDEN, "lsopen"], 1, "deny\n"),
        (["allows", "/no/such/profile", "lsopen"], 2, ""),
        (["allows", __file__, "lsopen"], 2, ""),
        ([], 2, ""),
    ],
)
def test_a_profile_is_asked(words: list[str], code: int, out: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == code
    captured = capsys.readouterr()
    assert captured.out == out and bool(captured.err) == (code == 2)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac is usable")
def test_the_probe_is_json_and_its_status(capsys: pytest.CaptureFixture[str]):
    assert main(["probe"]) == 1
    assert '"usable": false' in capsys.readouterr().out
