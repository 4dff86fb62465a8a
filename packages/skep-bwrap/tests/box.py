"""A real sandbox around a folder of the test's own, and what came out of it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skep_bwrap import BackendUnavailable, Ended, HostFacts, Outcome, compile, run, spawn
from skep_policy import replace
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.launch import Launch
from skep_policy.rules import Rules


class Result(NamedTuple):
    outcome: Outcome
    out: str
    err: str

    @property
    def code(self) -> int:
        return self.outcome.exit_code


class Box:
    """`home` holds `ws`, the one writable root, and `out`, a folder beside it."""

    def __init__(self, base: Path, bwrap: str) -> None:
        self.home = base
        self.ws = base / "ws"
        self.out = base / "out"
        self.ws.mkdir(exist_ok=True)
        self.out.mkdir(exist_ok=True)
        self.bwrap = bwrap

    def boundary(self, **given: Any) -> Boundary:
        values: dict[str, Any] = {
            "workspace": str(self.ws),
            "cwd": str(self.ws),
            "home": str(self.home),
            "uid": os.getuid(),
            "gid": os.getgid(),
            "roots": (PathRule(str(self.ws), Access.WRITE, "dir"),),
            "protects": (),
            "hides": (),
            "reads": (),
            "watched": (),
            "mapped": {},
            "read": "host",
            "devices": (),
            "sockets": (),
            "rules": Rules.build(),
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(self.home)},
            "limits": Limits(wall=60.0),
        }
        return Boundary(**{**values, **given})

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", how: dict[str, Any] | None = None, **given: Any
    ) -> Result:
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            source.write(stdin)
            source.seek(0)
            fds: dict[str, Any] = {
                "stdin": source.fileno(),
                "stdout": out.fileno(),
                "stderr": err.fileno(),
                **(how or {}),
            }
            outcome = run(self.boundary(**given), argv, bwrap=self.bwrap, **fds)
            out.seek(0)
            err.seek(0)
            return Result(outcome, out.read().decode(errors="replace"), err.read().decode(errors="replace"))

    def sh(self, script: str, **given: Any) -> Result:
        return self.run(["sh", "-c", script], **given)

    def python(self, script: str, **given: Any) -> Result:
        return self.run(["python3", "-c", script], **given)

    def launch(self, argv: Sequence[str] = ("true",), *, how: dict[str, Any] | None = None, **given: Any) -> Launch:
        facts = HostFacts.gather()
        # Those of other programs may be gone before they are covered; `run` launches again then, and a test does not.
        ours = (f"{self.home.parent}/", f"{tempfile.gettempdir()}/")
        facts = replace(facts, sockets=tuple(path for path in facts.sockets if path.startswith(ours)))
        return compile(self.boundary(**given), argv, facts=facts, bwrap=self.bwrap, **(how or {}))


def go(launch: Launch, **how: Any) -> Ended:
    """Spawn a launch with nothing on its standard descriptors, to its end."""
    nothing: dict[str, Any] = {"stdin": None, "stdout": None, "stderr": None, "wall": 120.0}
    return spawn(launch, **{**nothing, **how}).wait()


def ended_by_wall(attempt: Callable[[float], Result]) -> Result:
    """What comes of the attempt under a wall limit, in seconds, that this machine is quick enough to begin it in."""
    for wall in (0.5, 2.0, 8.0, 32.0):
        try:
            return attempt(wall)
        except BackendUnavailable as error:
            if error.check != "set-up":
                raise
    return attempt(128.0)


def own_children() -> set[int]:
    """Children of this process: those of a test are not the only ones."""
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:
        return {int(pid) for pid in listing.read().split()}


def without(launch: Launch, *words: str, instead: Sequence[str] = ()) -> Launch:
    """The launch with one run of bwrap's arguments taken out, or replaced."""
    args = list(launch.args)
    at = next(n for n in range(len(args)) if args[n : n + len(words)] == list(words))
    args[at : at + len(words)] = instead
    return replace(launch, args=tuple(args))


def eventually(condition: Callable[[], bool], *, seconds: float = 60) -> bool:
    """True as soon as the condition holds. The bound is for what never happens, not a measure of speed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def tagged(tag: str) -> list[int]:
    """Host processes that have `tag` in their command line, but this one."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as words:
                    if tag.encode() in words.read():
                        found.append(int(entry))
            except OSError:
                continue
    return found


def parents(pid: int) -> list[int]:
    """The process, its parent, and so on up to us."""
    chain: list[int] = []
    while pid not in (0, 1, os.getpid()):
        chain.append(pid)
        with open(f"/proc/{pid}/stat") as stat:
            pid = int(stat.read().rpartition(")")[2].split()[1])
    return chain


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
