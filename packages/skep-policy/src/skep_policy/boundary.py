"""What one launch enforces: absolute, backend-neutral, validated. A backend adds nothing to it and drops nothing."""

from __future__ import annotations

from .rules import Rules
from .value import Value, lazy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar, Literal


class Access(int):
    """Ordered: a larger value lets more through. As an enumeration would be, without its import."""

    if TYPE_CHECKING:
        HIDDEN: ClassVar[Access]
        READ: ClassVar[Access]
        WRITE: ClassVar[Access]

    @property
    def name(self) -> str:
        return ("HIDDEN", "READ", "WRITE")[self]

    def __repr__(self) -> str:
        return f"Access.{self.name}"


Access.HIDDEN, Access.READ, Access.WRITE = Access(0), Access(1), Access(2)

OWN_CODE = "skep itself runs from here"
"""The reason of a protect of the host's own files, whatever a run has in their place; no grant opens it."""


class PathRule(Value, order=True):
    """What the worker may do at `path` and below.

    `path` is absolute, with every link resolved, and exists when `kind` is not "absent". `reason` is for people
    (`policy show`, `explain`), `source` is the layer.
    """

    path: str
    access: Access
    kind: Literal["file", "dir", "absent"]
    reason: str = ""
    source: str = "built-in"


class Watched(Value, order=True):
    """A path that was absent before the launch. When it has appeared it is a finding; with `quarantine` it is moved
    away first, because the host would run or obey what stands there (git's configuration, a key for ssh).
    """

    path: str
    reason: str
    quarantine: bool = False


RESERVE = 512 << 20
"""Bytes to be left of every disk the worker writes on, where no policy says how many."""


class Limits(Value):
    """Seconds, bytes, counts; None is no limit of ours. `disk_free` is what is to be left of each disk; None is
    RESERVE, or half of what was left before where that is less.
    """

    wall: float | None = None
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None
    disk_free: int | None = None


class Overlay(Value):
    """Folders of the host: what the worker sees at first, where what it writes goes, and the kernel's own scratch for
    that. `upper` and `work` are empty, on one file system, and reachable by nobody else.
    """

    lower: str
    upper: str
    work: str


class Boundary(Value):
    """Everything a backend needs, and nothing it could disagree with.

    `roots` are writable, shallow first. `protects` are read-only although a root covers them, `hides` unreadable
    and unwritable; both beat every root above them, hides beat protects. A root *inside* a hide stays reachable (the
    hide covers everything of its folder but that root): `resolve` makes such a pair only for the workspace and the
    run's own folders, and refuses an operator's root inside a hide. `reads` is what can be read when `read` is
    "minimal".
    `watched` are paths absent before the launch that must be looked at after it. `mapped` maps a path the worker sees
    to the host folder that stands there (a run's copy at the repository's own path); such a path is always also a
    root. `overlays` are roots that show a folder of the host and keep what is written apart from it.
    `links` are links the worker could replace though what they lead to is protected, each with its text at launch: one
    that says something else afterwards is a finding. `known` are repositories and files the host runs by itself at any
    depth of the workspace, so that `appeared` can tell the new ones. `notes` are for people: what of the policy had
    no effect, and why.
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
    links: dict[str, str] = {}
    known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    overlays: dict[str, Overlay] = {}

    def access_to(self, path: str) -> Access:
        """The access the worker has at an absolute path without links."""
        return self.rule_for(path)[0]

    def rule_for(self, path: str) -> tuple[Access, PathRule | None]:
        """The access at an absolute path without links and the rule that decides it, None when it is the default. Who
        wins is the order of the code.
        """
        hide = deepest(self._hides, path)
        root = deepest(self._roots, path)
        if hide and not (root and below(root.path, hide.path)):
            return Access.HIDDEN, hide
        if protect := deepest(self._protects, path):
            return Access.READ, protect
        if root:
            return Access.WRITE, root
        if self.read == "minimal" and not deepest(self._reads, path):
            return Access.HIDDEN, None
        return Access.READ, None

    @lazy
    def _roots(self) -> dict[str, PathRule]:
        return by_path(self.roots)

    @lazy
    def _protects(self) -> dict[str, PathRule]:
        return by_path(self.protects)

    @lazy
    def _hides(self) -> dict[str, PathRule]:
        return by_path(self.hides)

    @lazy
    def _reads(self) -> dict[str, PathRule]:
        return by_path(self.reads)


def below(path: str, folder: str) -> bool:
    """True when an absolute path is a folder or stands inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def by_path(rules: Iterable[PathRule]) -> dict[str, PathRule]:
    """The rules by path, the first of each."""
    found: dict[str, PathRule] = {}
    for rule in rules:
        found.setdefault(rule.path, rule)
    return found


def deepest(rules: dict[str, PathRule], path: str) -> PathRule | None:
    """The rule of the deepest folder that holds an absolute path, or of the path itself: one look-up per folder."""
    while rules:
        if rule := rules.get(path):
            return rule
        if path == "/":
            break
        path = path.rpartition("/")[0] or "/"
    return None
