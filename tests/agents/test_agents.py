"""Real agents, installed here, mend a failing test in the boundary; their model is a script on loopback.

Opt-in: SKEP_TEST_AGENTS names the agents (`codex,claude`), which are installed from where npm and uv install them, some
hundreds of megabytes each, below SKEP_AGENTS_PREFIX when that is set and else in a folder that is removed again. What
each needs to know of the model stands in `stage.AGENTS`; how it is run is the preset's business.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .model import Model
from .stage import AGENTS, OPT_IN, WANTED, folder, installed, repository, skep

pytestmark = pytest.mark.skipif(not WANTED, reason=OPT_IN)


@pytest.fixture
def base() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def model() -> Iterator[Model]:
    with Model() as served:
        yield served


@pytest.mark.parametrize("name", WANTED)
def test_an_agent_mends_the_test_and_reaches_nothing_but_its_model(name: str, base: Path, model: Model) -> None:
    agent = AGENTS[name]
    path = f"{installed(agent, base)}:{os.environ['PATH']}"
    home = base / "home"
    home.mkdir()
    variables = agent.configure(home, model.port)
    before = {str(file.relative_to(home)) for file in home.rglob("*")}
    repo = repository(home / "repo")
    listed = json.loads(skep(home, path, variables, "workers", name, "--json").stdout)[0]
    denied = [word for host in listed["allow"] for word in ("--deny", host)]
    words = ["run", str(repo), "Fix the failing test: sh check.sh", "--worker", name, "--verify", "sh check.sh"]
    flags = [*denied, "--allow", f"localhost:{model.port}", "--wall", "5m", "--json", *agent.flags]
    done = skep(home, path, variables, *words, *flags)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    log = Path(told["audit"], "worker.log").read_text() if told else ""
    assert done.returncode == 0, (done.stderr, log, model.asked, told.get("egress"))
    assert told["files_changed"] == ["calc.py"], (log, told)
    assert told["verification"]["outcome"] == "passed"
    reached = {(entry["host"], entry["port"]) for entry in told["egress"]["allowed"]}
    assert reached == {("localhost", model.port)}, told["egress"]
    assert any("it-passes" in json.dumps(body) for body in model.bodies) or name == "aider"
    assert skep(home, path, variables, "approve", told["id"]).returncode == 0
    shown = subprocess.run(["git", "show", f"skep/{told['id']}:calc.py"], cwd=repo, capture_output=True, check=True)
    assert b"a+b" in shown.stdout
    after = {str(file.relative_to(home)) for file in home.rglob("*")} - set(before)
    assert not {path for path in after if not path.startswith((".local/state/skep", "repo"))} - {
        ".local",
        ".local/state",
    }
