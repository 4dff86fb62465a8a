"""docs/first-run.md is what a new user sees: each of its commands is run in an empty home, and answers as it stands
there.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .agents.model import Model
from .agents.stage import OPT_IN, WANTED, folder
from .readme import code_blocks

AGENT = """#!/usr/bin/python3 -IS
import os, urllib.request
try:
    urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"])
except OSError:
    pass
open("calc.py", "w").write("def add(a, b):\\n    return a+b\\n")
print("The test passes now.")
"""
"""What stands in for Claude Code where it is not installed."""

ROOT = Path(__file__).parents[1]
PORT = "8123"
SECONDS = 600
THE_RUN = '"$(git branch --format "%(refname:short)" --list "skep/*")"'
VARIES = (
    (r"\b[0-9a-f]{40}\b|\b[0-9a-f]{12}\b|\b[0-9a-f]{7}\b", "HASH"),
    (
        r"(?<=run )1[0-9a-z]{8}\b|(?<=/)1[0-9a-z]{8}\b|(?<=approve )1\w{8}|(?<=deny )1\w{8}|(?<=review )1\w{8}|^1\w{8}",
        "RUN",
    ),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d", "DATE"),
    (r"\d+ times?, [\d,]+ bytes out, [\d,]+ in", "N times, N bytes out, N in"),
    (r"\b\d+\.\d+ ?s\b|(?<= )\d+\.\d(?= )", "N s"),
    (r"(?<=^  boundary  ).*", "LAYERS"),
    (r"(?<=RUN: )(an overlay over .*|a copy, .*\n.*: copying .*\n.*: copied .*)", "WORKSPACE"),
    (r" +(?=(DATE|N s|STARTED|SECONDS))|(?<=N s) +", " "),
)
"""What is different each time, and what stands for it here."""


def plain(text: str) -> list[str]:
    for pattern, word in VARIES:
        text = re.sub(pattern, word, text, flags=re.M)
    return text.splitlines()


def parts() -> list[str]:
    """The transcript, without what stands between its parts."""
    return [block.text for block in code_blocks(ROOT / "docs/first-run.md") if block.mark == "transcript: first-run"]


def replayed(shown: str, home: Path, port: int) -> str:
    """What a shell of a new user shows when it is given the commands, each as it stands in the document above what it
    says.
    """
    script = ["exec 2>&1"]
    for line in shown.splitlines():
        if line.startswith("$ "):
            command = line[2:].replace(PORT, str(port))
            command = re.sub(r"skep/1\w{8}\b", THE_RUN, command)
            script += [f"cat <<'SHOWN'\n{line}\nSHOWN", command]
    outside = [folder for folder in os.environ["PATH"].split(":") if not folder.startswith(str(ROOT))]
    path = ":".join([f"{home}/.local/bin", *outside])
    environ = {
        name: value for name, value in os.environ.items() if re.match(r"LANG|LC_|PIP_|NODE_EXTRA|.*_BUNDLE|SSL_", name)
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=ROOT,
        env={**environ, "HOME": str(home), "USER": "new", "PATH": path, "PIP_ROOT_USER_ACTION": "ignore"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout + done.stderr


def differences(shown: str, home: Path) -> str:
    """Between what the document shows and what is said in that home; empty when there is none that matters."""
    with Model() as model:
        said = replayed(shown, home, model.port).replace(str(model.port), PORT).replace(str(home), "/home/new")
    found = "\n".join(difflib.unified_diff(plain(shown), plain(said), "the document", "here", lineterm=""))
    return found and f"{found}\n\n{said}"


@pytest.mark.skipif("claude" not in WANTED, reason=OPT_IN)
def test_the_transcript_of_a_first_run_is_what_a_new_user_sees() -> None:
    with folder() as home:
        assert not (found := differences("".join(parts()), home)), found


@pytest.mark.sandbox
def test_what_skep_says_in_the_transcript_is_what_it_says_now(sandbox_starts: None) -> None:
    """Everything after the installation, with a script in the agent's place."""
    shown = [line for line in "".join(parts()[1:]).splitlines(keepends=True) if not line.startswith("$ npm install")]
    with folder() as home:
        programs = home / ".local/bin"
        programs.mkdir(parents=True)
        (programs / "claude").write_text(AGENT)
        (programs / "claude").chmod(0o755)
        (programs / "skep").symlink_to(Path(sys.executable).with_name("skep"))
        assert not (found := differences("".join(shown), home)), found
