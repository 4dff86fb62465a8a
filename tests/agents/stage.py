"""Real agents and what each must be told to find a model on loopback; a repository with a failing test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

WANTED = [name for name in os.environ.get("SKEP_TEST_AGENTS", "").split(",") if name]
OPT_IN = "opt-in: SKEP_TEST_AGENTS=codex,claude,..."


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


@contextmanager
def folder() -> Generator[Path]:
    """Below the home folder, since /tmp is the worker's own; gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix=".skep-agents-", dir=Path.home()))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


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
