"""How soon does a worker start? `skep run` on repositories of growing size."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from .measure import Broken, median
from .sandboxes import SKEP, environ
from .settings import Settings
from .table import markdown, missing, short

FILE_SIZE = 20_000
"""Bytes of a file on average: 100,000 files are 2 GB."""

IN_A_FOLDER = 100
CHANGED = 10
LIMIT = 600.0


def answer(settings: Settings) -> str:
    """The table, as Markdown."""
    home = settings.scratch / "home"
    home.mkdir(exist_ok=True)
    env = environ(home)
    rows: list[list[str]] = []
    broken: dict[str, str] = {}
    for count in settings.size.files:
        settings.say(f"run: a repository of {count:,} files")
        repo = settings.scratch / f"repo-{count}"
        _repository(repo, count, env)
        starts: list[float] = []
        ends: list[float] = []
        try:
            for _ in range(settings.rounds):
                started, ended = _run(repo, env, settings)
                starts.append(started)
                ends.append(ended)
            size = count * FILE_SIZE / 1e9
            rows.append([f"{count:,}", short(size), short(median(starts)), short(median(ends))])
        except Broken as problem:
            broken[f"{count:,} files"] = str(problem)
        shutil.rmtree(repo)
    header = ["files", "GB", "worker started after, s", f"patch of {CHANGED} files and all done after, s"]
    parts = ["### Run: `skep run` by size of the repository", markdown(header, rows), missing(broken)]
    return "\n\n".join(parts).strip()


def _repository(repo: Path, count: int, env: Mapping[str, str]) -> None:
    """A git repository of `count` files with one commit."""
    repo.mkdir()
    for number in range(count):
        folder = repo / f"d{number // IN_A_FOLDER}"
        if number % IN_A_FOLDER == 0:
            folder.mkdir()
        line = f"file {number} of many\n".encode()
        (folder / f"f{number}.txt").write_bytes((line * (FILE_SIZE // len(line) + 1))[:FILE_SIZE])
    git = ["git", "-C", str(repo), "-c", "user.name=benchmark", "-c", "user.email=benchmark@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _run(repo: Path, env: Mapping[str, str], settings: Settings) -> tuple[float, float]:
    """Seconds until the worker's first command, and until skep is done. Raises Broken."""
    results = settings.fresh_folder()
    changes = "; ".join(f"echo changed >> d0/f{number}.txt" for number in range(CHANGED))
    worker = f"sh -c 'date +%s.%N > \"$SKEP_RESULTS/started\"; {changes}'"
    argv = [SKEP, "run", str(repo), "measure", "--worker", worker, "--results", str(results), "--json", "--quiet"]
    began = time.time()
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    took = time.time() - began
    if done.returncode != 0:
        raise Broken((done.stderr.strip() or done.stdout.strip())[-300:])
    with contextlib.suppress(OSError):
        shutil.rmtree(Path(env["HOME"]) / ".local" / "state", ignore_errors=True)
    return float((results / "started").read_text()) - began, took
