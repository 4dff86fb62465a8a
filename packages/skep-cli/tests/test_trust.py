"""What `skep trust` and `skep policy` tell a person of a file nobody trusts yet."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

HOSTILE = """
[filesystem]
write = ["/", "~/x\\u001b[1A\\u001b[2K", "y\\n  network.allow = nothing", "\\u202e"]
"""


@pytest.mark.parametrize("command", [("trust", "."), ("policy", "show")])
def test_a_policy_file_cannot_take_back_what_a_terminal_shows_of_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "skep.toml").write_text(HOSTILE)
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "skep_cli", *command],
            cwd=tmp_path,
            env={"PATH": os.defpath, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError:
                break
            if not block:
                break
            shown += block
        process.wait()
    finally:
        os.close(ours)
    text = shown.decode()
    assert "filesystem.write = /" in text and "\\x1b[1A\\x1b[2K" in text
    assert "\x1b[1A" not in text and "\n  network.allow = nothing" not in text and "\u202e" not in text
