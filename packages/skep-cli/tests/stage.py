"""Real repositories and real runs for the tests: what a user would have, made small."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from skep_cli import workers
from skep_cli.errors import NoOverlay
from skep_cli.evidence.record import Mode, Run
from skep_cli.evidence.state import RunFolder, Runs
from skep_cli.git import repository
from skep_cli.git.hostgit import find_git
from skep_cli.screen.status import Status
from skep_cli.stages import local
from skep_cli.stages.order import Hooks, Order, Outcome, Place
from skep_cli.stages.pipeline import Pipeline

GIT = find_git(os.environ)
NOBODY = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always")
PLAIN = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "LC_ALL": "C"}


def git(repo: Path, *args: str, text: bytes | None = None) -> str:
    """What git says, surrogates for bytes that are no UTF-8. Raises when it fails."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | PLAIN
    done = subprocess.run([GIT, *NOBODY, *args], cwd=repo, env=env, check=True, capture_output=True, input=text)
    return os.fsdecode(done.stdout)


def make_repo(folder: Path, files: Mapping[str, str | bytes] | None = None, *init: str) -> Path:
    """A repository with one commit of the files, or with none when there are no files."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", *init)
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    if files:
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "base")
    return folder


class Plain:
    """Bounds without a boundary or a policy: `local.run` on the workspace."""

    def __init__(self, order: Order, wall: float | None = 60.0) -> None:
        self.order = order
        self.wall = wall
        self.null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def policy(self) -> bytes:
        return b"{}\n"

    def overlay_bwrap(self, folder: str, lower: str | None = None) -> str:
        raise NoOverlay("no boundary")

    def setup(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        return self.launch(Path(place.folder), argv, {}, output, hooks)

    def worker(
        self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
    ) -> Outcome:
        return self.launch(Path(place.folder), argv, env, output, hooks)

    def verifier(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        return self.launch(Path(place.folder), argv, {}, output, hooks)

    def launch(
        self, workspace: Path, argv: Sequence[str], env: Mapping[str, str], output: int, hooks: Hooks
    ) -> Outcome:
        hooks.evidence(local.EVIDENCE)

        def spawned(kill: Callable[[], None]) -> None:
            hooks.spawned(kill)
            hooks.started()

        return local.run(
            argv,
            cwd=str(workspace / os.path.relpath(self.order.folder, self.order.root)),
            env={"PATH": os.environ["PATH"], **PLAIN, **env},
            stdin=self.null,
            output=output,
            wall=self.wall,
            spawned=spawned,
        )


def order(repo: Path, worker: str | Sequence[str], **more: Any) -> Order:
    """What `skep run` would order, in workspace mode."""
    folder = os.path.realpath(repo)
    found = repository.find(GIT, Path(folder), home=None)
    words = ["sh", "-c", worker] if isinstance(worker, str) else list(worker)
    verify: str | None = more.pop("verify", None)
    task: str = more.pop("task", "mend it")
    mode: Mode = more.pop("mode", "workspace")
    made = Order(
        root=found.root if found else folder,
        folder=folder,
        repository=found,
        git=GIT,
        task=task,
        worker=words,
        argv=workers.with_task(words, task),
        mode=mode,
        verify=shlex.split(verify) if verify else None,
        verify_text=verify,
        results=None,
        keep=False,
        exclude=os.path.join(found.common_dir, "info/exclude") if found else None,
        user_exclude=None,
        notes=[],
        version="0",
    )
    return msgspec.structs.replace(made, **more)


def run(state: Path, repo: Path, worker: str | Sequence[str], **more: Any) -> tuple[Run, RunFolder]:
    """A whole run without a boundary."""
    wall: float | None = more.pop("wall", 60.0)
    given = order(repo, worker, **more)
    return Pipeline(given, Plain(given, wall), Runs(state / "skep"), Status(quiet=True)).go()


def skep(
    state: Path, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """skep as a user calls it, in a home of its own."""
    home = state / "home"
    home.mkdir(parents=True, exist_ok=True)
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_STATE_HOME": str(state), "USER": "t", **PLAIN}
    return subprocess.run(
        [sys.executable, "-m", "skep_cli", *args],
        cwd=cwd or home,
        env={**base, **(env or {})},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON on the last line of stdout."""
    return json.loads(done.stdout.strip().splitlines()[-1])
