"""Real agents, installed here, mend a failing test in the boundary; their model is a script on loopback.

Opt-in: SKEP_TEST_AGENTS names the agents (`codex,claude`), which are installed from where npm and uv install them, some
hundreds of megabytes each, below SKEP_AGENTS_PREFIX when that is set and else in a folder that is removed again. What
each needs to know of the model stands in `AGENTS`; how it is run is the preset's business.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .model import Model

WANTED = [name for name in os.environ.get("SKEP_TEST_AGENTS", "").split(",") if name]
pytestmark = pytest.mark.skipif(not WANTED, reason="opt-in: SKEP_TEST_AGENTS=codex,claude,...")


class Agent(NamedTuple):
    """`package` is what npm installs (`uv:NAME`: uv); `configure` prepares a home for a model at a port, and returns
    variables.
    """

    package: str
    configure: Callable[[Path, int], dict[str, str]]
    flags: tuple[str, ...] = ()


def codex(home: Path, port: int) -> dict[str, str]:
    (home / ".codex").mkdir()
    (home / ".codex/config.toml").write_text(
        'model = "test"\nmodel_provider = "here"\n[model_providers.here]\nname = "here"\n'
        f'base_url = "http://localhost:{port}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n'
    )
    return {"OPENAI_API_KEY": "test"}


def claude(home: Path, port: int) -> dict[str, str]:
    return {"ANTHROPIC_API_KEY": "test", "ANTHROPIC_BASE_URL": f"http://localhost:{port}"}


def opencode(home: Path, port: int) -> dict[str, str]:
    (home / ".config/opencode").mkdir(parents=True)
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"http://localhost:{port}/v1", "apiKey": "test"},
        "models": {"test": {}},
    }
    document: dict[str, Any] = {"model": "here/test", "small_model": "here/test", "provider": {"here": provider}}
    (home / ".config/opencode/opencode.json").write_text(json.dumps(document))
    return {}


def gemini(home: Path, port: int) -> dict[str, str]:
    (home / ".gemini").mkdir()
    auth = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": False}}
    (home / ".gemini/settings.json").write_text(json.dumps(auth))
    return {
        "GEMINI_API_KEY": "test",
        "GOOGLE_GEMINI_BASE_URL": f"http://localhost:{port}",
        "GEMINI_MODEL": "gemini-2.5-flash",
    }


def aider(home: Path, port: int) -> dict[str, str]:
    return {
        "OPENAI_API_KEY": "test",
        "OPENAI_API_BASE": f"http://localhost:{port}/v1",
        "AIDER_MODEL": "openai/test",
        "AIDER_EDIT_FORMAT": "diff",
        "AIDER_FILE": "calc.py",
    }


AGENTS = {
    "codex": Agent("@openai/codex", codex),
    "claude": Agent("@anthropic-ai/claude-code", claude),
    "gemini": Agent("@google/gemini-cli", gemini),
    "opencode": Agent("opencode-ai", opencode),
    "aider": Agent("uv:aider-chat", aider),
}


@pytest.fixture
def base() -> Iterator[Path]:
    """Below the home folder: /tmp is the worker's own."""
    folder = Path(tempfile.mkdtemp(prefix=".skep-agents-", dir=Path.home()))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def model() -> Iterator[Model]:
    served = Model()
    yield served
    served.close()


def installed(agent: Agent, base: Path) -> Path:
    """The folder of the agent's program."""
    prefix = Path(os.environ.get("SKEP_AGENTS_PREFIX") or base / "prefix")
    kind, _, name = agent.package.rpartition(":")
    if kind == "uv":
        folder = prefix / "bin"
        env = {**os.environ, "UV_TOOL_DIR": str(prefix / "tools"), "UV_TOOL_BIN_DIR": str(folder)}
        words = ["uv", "tool", "install", name]
    else:
        folder, env = prefix / "bin", dict(os.environ)
        # Else npm takes an older one where the newest wants a newer Node, whether it needs Node at all or not.
        words = ["npm", "install", "--global", "--prefix", str(prefix), f"--allow-scripts={name}", f"{name}@latest"]
    prefix.mkdir(parents=True, exist_ok=True)
    subprocess.run(words, env=env, check=True, capture_output=True, timeout=900)
    return folder


def skep(home: Path, path: str, variables: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": path, "HOME": str(home), "USER": "t", **variables}
    return subprocess.run(
        [sys.executable, "-m", "skep_cli", *args],
        env=env,
        cwd=home,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=400,
        check=False,
    )


def repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "check.sh").write_text("python3 -c 'import calc; assert calc.add(1, 2) == 3'\n")
    (folder / ".gitignore").write_text("__pycache__/\n")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "base")):
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)
    return folder


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
