"""What one launch enforces: absolute, backend-neutral, validated. A backend adds nothing to it and drops nothing."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from .rules import Rules


class Access(enum.IntEnum):
    """Ordered: a larger value lets more through."""

    HIDDEN = 0
    READ = 1
    WRITE = 2


class PathRule(msgspec.Struct, frozen=True, order=True):
    """What the worker may do at `path` and below.

    `path` is absolute, with every link resolved, and exists when `kind` is not "absent". `reason` is for people
    (`policy show`, `explain`), `source` is the layer.
    """

    path: str
    access: Access
    kind: Literal["file", "dir", "absent"]
    reason: str = ""
    source: str = "built-in"


class Watched(msgspec.Struct, frozen=True, order=True):
    """A path that was absent before the launch. When it has appeared it is a finding; with `quarantine` it is moved away
    first, because git of the host would run or obey what stands there.
    """

    path: str
    reason: str
    quarantine: bool = False


class Limits(msgspec.Struct, frozen=True):
    """Seconds, bytes, counts; None is no limit of ours."""

    wall: float | None = None
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None


class Boundary(msgspec.Struct, frozen=True):
    """Everything a backend needs, and nothing it could disagree with.

    `roots` are writable, shallow first. `protects` are read-only although a root covers them, `hides` unreadable
    and unwritable; both beat every root above them, hides beat protects. A root *inside* a hide stays reachable (the
    hide covers everything of its folder but that root): `resolve` makes such a pair only for the workspace and the
    run's own folders, and refuses an operator's root inside a hide. `reads` is what can be read when `read` is
    "minimal".
    `watched` are paths absent before the launch that must be looked at after it. `mapped` maps a path the worker sees
    to the host folder that stands there (a run's copy at the repository's own path); such a path is always also a root.
    """

    workspace: str
    cwd: str
    home: str
    uid: int
    gid: int
    roots: tuple[PathRule, ...]
    protects: tuple[PathRule, ...]
    hides: tuple[PathRule, ...]
    reads: tuple[PathRule, ...]
    watched: tuple[Watched, ...]
    mapped: dict[str, str]
    read: Literal["host", "minimal"]
    devices: tuple[str, ...]
    sockets: tuple[str, ...]
    rules: Rules
    env: dict[str, str]
    limits: Limits
    strict: bool = False

    def access_to(self, path: str) -> Access:
        """The access the worker has at an absolute path without links. Who wins is the order of the code."""
        hide = _deepest(self.hides, path)
        root = _deepest(self.roots, path)
        if hide and not (root and _below(root.path, hide.path)):
            return Access.HIDDEN
        if _deepest(self.protects, path):
            return Access.READ
        if root:
            return Access.WRITE
        if self.read == "minimal" and not _deepest(self.reads, path):
            return Access.HIDDEN
        return Access.READ


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _deepest(rules: tuple[PathRule, ...], path: str) -> PathRule | None:
    best: PathRule | None = None
    for rule in rules:
        if _below(path, rule.path) and (best is None or len(rule.path) > len(best.path)):
            best = rule
    return best
