"""Real agents in a terminal, under a shell with job control: as usable in the boundary as without it."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from .agents.model import Model
from .agents.stage import AGENTS, OPT_IN, WANTED, folder, installed, repository
from .ptys import PATIENCE, Terminal

pytestmark = pytest.mark.skipif(not WANTED, reason=OPT_IN)

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[P_^][^\x1b]*\x1b\\|[()][A-Z0-9]|.)")
ASKED = {
    "\x1b[6n": "\x1b[1;1R",  # where the cursor is
    "\x1b[c": "\x1b[?62;22c",  # which kind of terminal it is
    "\x1b]11;?": "\x1b]11;rgb:0000/0000/0000\x1b\\",  # the background
}
"""What full-screen programs ask a terminal, and wait for."""


class Screen(Terminal):
    """A terminal that answers, and that is read as a person would: words, wherever they stand."""

    def shows(self, words: str) -> None:
        """Read until the words have been shown, in colour or not, however they were placed; forget what was before."""
        wanted = "".join(words.split())
        end = time.monotonic() + PATIENCE
        while wanted not in "".join(ESCAPES.sub("", self.seen).split()):
            left = end - time.monotonic()
            assert left > 0 and select.select([self.fd], [], [], left)[0], f"no {words!r} in {self.plain()!r}"
            block = os.read(self.fd, 65536).decode(errors="replace")
            for question, answer in ASKED.items():
                os.write(self.fd, (answer * block.count(question)).encode())
            self.seen += block
        self.seen = ""

    def plain(self) -> str:
        return ESCAPES.sub("", self.seen)

    def enter(self, text: str) -> None:
        """Typed by a person: programs take what comes at once for something pasted."""
        os.write(self.fd, text.encode())
        time.sleep(0.5)
        os.write(self.fd, b"\r")


class Seat(NamedTuple):
    """How a person starts an agent; what it shows when it is ready and when it has stopped; what ends it."""

    words: str
    ready: str
    end: tuple[str, ...]


SEATS = {
    "claude": Seat("claude --permission-mode default --allowedTools Bash", "for shortcuts", ("\x03", "\x03")),
    "codex": Seat("codex --dangerously-bypass-approvals-and-sandbox", "Ask Codex to do anything", ("\x03",)),
}


def has_been_used(home: Path, repo: Path, name: str) -> None:
    """The agent has had its first start, and the folder is one its user trusts."""
    if name == "claude":
        told = {
            "hasCompletedOnboarding": True,
            "customApiKeyResponses": {"approved": ["test"], "rejected": []},
            "projects": {str(repo): {"hasTrustDialogAccepted": True}},
        }
        (home / ".claude.json").write_text(json.dumps(told))
    else:
        with open(home / ".codex/config.toml", "a") as file:
            file.write(f'[projects."{repo}"]\ntrust_level = "trusted"\n')


@pytest.fixture
def base() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as served:
        yield served


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


@pytest.mark.parametrize("name", [name for name in WANTED if name in SEATS] or ["none"])
def test_an_agent_at_a_terminal_takes_keys_resizes_stops_goes_on_and_works(
    name: str, base: Path, model: Model, screens: list[Screen]
) -> None:
    if name not in SEATS:
        pytest.skip("none of the agents asked for is tried at a terminal")
    agent, seat = AGENTS[name], SEATS[name]
    home = base / "home"
    home.mkdir()
    variables = agent.configure(home, model.port)
    repo = repository(base / "work")
    has_been_used(home, repo, name)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    more = {"PATH": f"{installed(agent, base)}:{os.environ['PATH']}", **variables}
    bash = shutil.which("bash")
    assert bash
    screen = Screen([bash, "--norc", "--noprofile", "-i"], base, (40, 100), "xterm-256color", more)
    screens.append(screen)
    screen.shows("sh%")
    screen.enter(f'"$SKEP" exec --preset {name} --allow localhost:{model.port} -- {seat.words}')
    screen.shows(seat.ready)
    screen.type("\x1a")
    screen.shows("Stopped")
    screen.enter("echo shell $((40 + 2))")
    screen.shows("shell 42")
    screen.enter("fg")
    screen.shows(seat.ready)
    screen.resize(30, 60)
    screen.shows(seat.ready)
    screen.enter("Fix the failing test")
    screen.shows("The test passes now.")
    assert (repo / "calc.py").read_text().endswith("return a+b\n")
    assert any("it-passes" in json.dumps(body) for body in model.bodies)
    for key in seat.end:
        screen.type(key)
    screen.shows("sh%")
    screen.enter("echo done $((40 + 3))")
    screen.shows("done 43")
    after = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before, "the host's own state stays as it was"
    assert not [path for path in set(after) - set(before) if ".local/state/skep" not in str(path)]
