"""A wrong document is a failing test: links resolve, blocks run, commands exist, the README's commands are CI's."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from skep_policy import parse_policy

from .readme import Block, code_blocks

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")])
BLOCKS = [(document, block) for document in DOCUMENTS for block in code_blocks(document)]
SET_UP = "python3 -m pip install -q --upgrade --target .uv uv"


def blocks(*languages: str) -> list[tuple[Path, Block]]:
    return [(document, block) for document, block in BLOCKS if block.language in languages]


def blocks_run_here(language: str) -> list[tuple[Path, Block]]:
    """Without those of packages that run their README's blocks in a test of their own."""
    return [found for found in blocks(language) if not (found[0].parent / "tests/test_readme.py").exists()]


def name(value: Path | Block) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else f"line {value.line}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("document", "block"), blocks_run_here("python"), ids=name)
def test_python_says_how_it_is_run(document: Path, block: Block) -> None:
    assert re.fullmatch(r"run(: skep-bwrap skep-proxy|: sandbox)?", block.mark), "no `<!-- run -->` above the block"


def test_python_runs(tmp_path: Path) -> None:
    run_all("run", tmp_path)


@pytest.mark.sandbox
def test_python_that_starts_a_sandbox_runs(sandbox_starts: None, tmp_path: Path) -> None:
    run_all("run: sandbox", tmp_path)


def run_all(mark: str, folder: Path) -> None:
    """Every Python block with this mark runs in a fresh interpreter, in a folder of its own."""
    for document, block in blocks_run_here("python"):
        if block.mark == mark:
            done = subprocess.run(
                [sys.executable, "-c", block.text], cwd=folder, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, f"{name(document)}:{block.line}\n{done.stderr}"


def test_toml_is_a_policy_that_loads() -> None:
    for document, block in blocks_run_here("toml"):
        if not block.mark.startswith("preset: "):
            parse_policy(block.text, source=f"{name(document)}:{block.line}")


def test_a_preset_shown_is_one_that_is_understood(tmp_path: Path) -> None:
    shown = [block for _, block in blocks("toml") if block.mark.startswith("preset: ")]
    assert shown
    for block in shown:
        preset = block.mark.removeprefix("preset: ")
        path = tmp_path / "skep/workers" / f"{preset}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
        words = [Path(sys.executable).with_name("skep"), "workers", preset, "--json"]
        env = {"PATH": os.defpath, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)[0]["source"] == str(path)


def shown_commands() -> list[tuple[str, str]]:
    """(where, command line) of each `skep` and `skep-proxy` command in a shell block."""
    found: list[tuple[str, str]] = []
    for document, block in blocks("sh", "console"):
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ").partition("  #")[0]
            if re.match(r"(\S*/)?skep(-proxy)? ", command):
                found.append((f"{document.relative_to(ROOT)}:{block.line}", command))
    return found


@pytest.mark.parametrize(("where", "command"), shown_commands())
def test_shown_command_exists_with_its_flags(where: str, command: str) -> None:
    words = shlex.split(command)
    words = words[: words.index("--")] if "--" in words else words
    program = Path(sys.executable).with_name(Path(words[0]).name)
    path = [word for word in words[1:] if re.fullmatch("[a-z]+", word)][: 2 if words[1] in ("policy", "audit") else 1]
    help = help_of(program, *path)
    for flag in (word.partition("=")[0] for word in words[1:] if word.startswith("--")):
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help), flag


@cache
def help_of(*words: str | Path) -> str:
    done = subprocess.run([*words, "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_has_two_commands_that_each_set_up_a_bare_machine() -> None:
    commands = {
        block.mark: block.text for block in code_blocks(ROOT / "README.md") if block.mark.startswith("command: ")
    }
    assert commands == {
        "command: demo": f"{SET_UP} && .uv/bin/uv run --all-packages skep demo\n",
        "command: test": f"{SET_UP} && .uv/bin/uv run --all-packages python -m pytest -q\n",
    }
    assert SET_UP in (ROOT / ".ci/run").read_text() and SET_UP in (ROOT / "CONTRIBUTING.md").read_text()


def test_ci_takes_its_commands_from_the_readme() -> None:
    script = (ROOT / ".ci/run").read_text()
    for mark in ("demo", "test"):
        assert f"readme_command {mark}" in script
