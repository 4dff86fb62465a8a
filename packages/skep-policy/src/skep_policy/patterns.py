"""Patterns in `protect` and `hide`: which paths they mean at the time of the launch.

`*` stands for any characters of one name, `?` for one, `**` alone for any number of folders. Brackets mean themselves:
web frameworks name folders `[id]`. Names that begin with a dot are matched like any other, since secrets do. Links
are not followed on the way; a link that matches is.
"""

from __future__ import annotations

from .errors import PolicyError
from .paths import Tree
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Set

MAX_MATCHES = 10_000
"""Every match is a mount; the kernel takes 100,000 of them, bwrap a tenth of that comfortably."""

MAX_LOOKED = 200_000
"""Entries looked at for one pattern."""


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def matches(pattern: str, tree: Tree) -> list[str]:
    """The existing paths an absolute pattern means, sorted. A path that exists under the pattern's own letters is
    that path. Raises PolicyError when there are too many.
    """
    if tree.place(pattern).kind != "absent":
        return [pattern]
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    fixed = 0
    while fixed < len(parts) and not is_pattern(parts[fixed]):
        fixed += 1
    start = tree.place("/" + "/".join(parts[:fixed]))
    if start.kind != "dir":
        return []
    return sorted(_walk(pattern, start.path.rstrip("/"), parts[fixed:], tree))


def _walk(pattern: str, start: str, parts: list[str], tree: Tree) -> set[str]:
    """Every path below start that the parts match; a state is (folder, how many parts are used up)."""
    compiled = [None if part == "**" else _name(part) for part in parts]
    found: set[str] = set()
    looked = 0
    todo = [(start, 0)]
    done = set(todo)
    while todo:
        folder, position = todo.pop()
        for name in tree.names(folder or "/"):
            looked += 1
            if looked > MAX_LOOKED or len(found) > MAX_MATCHES:
                limit = f"matches more than {MAX_MATCHES} paths" if len(found) > MAX_MATCHES else "looks too far"
                raise PolicyError(f"{pattern!r} {limit}; name the folder that holds them instead")
            path = f"{folder}/{name}"
            for used, whole in _steps(compiled, position, name):
                if whole:
                    found.add(path)
                elif (path, used) not in done and tree.is_folder(path):
                    done.add((path, used))
                    todo.append((path, used))
    return found


def _steps(compiled: list[re.Pattern[str] | None], position: int, name: str) -> list[tuple[int, bool]]:
    """Where the parts stand after one more name: (parts used up, whether all of them are)."""
    steps: list[tuple[int, bool]] = []
    while position < len(compiled):
        part = compiled[position]
        if part is not None:
            if part.fullmatch(name):
                steps.append((position + 1, position + 1 == len(compiled)))
            return steps
        if position + 1 == len(compiled):
            steps.append((position, True))
        steps.append((position, False))
        position += 1
    return steps


def _name(part: str) -> re.Pattern[str]:
    import re  # a policy without patterns does not need it

    pieces = ["[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char) for char in part]
    return re.compile("".join(pieces), re.DOTALL)


class Survey(Value):
    """What a walk of a folder found: entries with one of the names asked for, folders that are bare git repositories,
    folders that cannot be listed, and whether every other one was looked into.
    """

    entries: list[tuple[str, str]]
    bare: list[str]
    closed: list[str]
    complete: bool

    def paths(self) -> list[str]:
        return [*(f"{folder}/{name}" for folder, name in self.entries), *self.bare]


def survey(top: str, names: frozenset[str], tree: Tree, *, limit: int, skipped: Set[str] | None = None) -> Survey:
    """Look below a folder, breadth first, for entries with one of the names (those of the folder itself left out).
    Links and `.git` are not entered, nor what is `skipped`: by default `SKIPPED` and the objects of bare repositories.
    """
    found: list[tuple[str, str]] = []
    bare: list[str] = []
    closed: list[str] = []
    todo = [top]
    looked = 0
    while todo:
        following: list[str] = []
        for folder in todo:
            looked += 1
            if looked > limit:
                return Survey(sorted(found), sorted(bare), [*closed, folder], False)
            entries = tree.entries(folder)
            if entries is None:
                closed.append(folder)
                entries = tree.entries_called(folder, names)
            left = SKIPPED if skipped is None else skipped
            if is_bare(entries.keys()):
                bare.append(folder)
                left = left | _BARE if skipped is None else left  # never more: names are easily had
            for name in entries.keys() & names if folder != top else ():
                found.append((folder, name))
            following += [
                f"{folder.rstrip('/')}/{name}"
                for name, is_folder in entries.items()
                if is_folder and name != ".git" and name not in left
            ]
        todo = following
    return Survey(sorted(found), sorted(bare), closed, True)


MAX_FOLDERS = 10_000
"""Folders of a workspace looked into for nested repositories and what the host runs by itself: about 100 ms of
looking.
"""

UNSEEN = "..."
"""Stands in `Boundary.known` for what was not looked into."""

SKIPPED = frozenset(("node_modules", ".venv", "__pycache__", ".tox", ".nox"))
"""Folders of installed dependencies: nobody opens an editor or a repository there, and they are large."""

_BARE = frozenset(("HEAD", "objects", "refs"))


def is_bare(names: Set[str]) -> bool:
    """Is a folder with these entries a repository to git (setup.c, is_git_directory)? One with a `commondir` has its
    objects and references elsewhere. A `.git` beside them does not count: git looks further when it is none.
    """
    return "HEAD" in names and ("commondir" in names or names >= _BARE)
