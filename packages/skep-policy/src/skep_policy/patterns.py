"""Patterns in `protect` and `hide`: which paths they mean at the time of the launch.

`*` stands for any characters of one name, `?` for one, `**` alone for any number of folders. Brackets mean themselves:
web frameworks name folders `[id]`. Names that begin with a dot are matched like any other, since secrets do. Links
are not followed on the way; a link that matches is.
"""

from __future__ import annotations

import re

from .errors import PolicyError
from .paths import Tree

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
    pieces = ["[^/]*" if char == "*" else "[^/]" if char == "?" else re.escape(char) for char in part]
    return re.compile("".join(pieces), re.DOTALL)


def nested(top: str, names: frozenset[str], tree: Tree, *, limit: int) -> tuple[list[tuple[str, str]], bool]:
    """(folder, name) of every entry below a folder that has one of the names, breadth first, the folder itself left
    out, and whether all folders were looked into. What has one of the names is not entered, nor are links, nor
    `SKIPPED`.
    """
    found: list[tuple[str, str]] = []
    todo = [top]
    looked = 0
    while todo:
        following: list[str] = []
        for folder in todo:
            looked += 1
            if looked > limit:
                return found, False
            for name, is_folder in tree.entries(folder):
                if name in names:
                    if folder != top:
                        found.append((folder, name))
                elif is_folder and name not in SKIPPED:
                    following.append(f"{folder.rstrip('/')}/{name}")
        todo = following
    return found, True


SKIPPED = frozenset(("node_modules", ".venv", "__pycache__", ".tox", ".nox"))
"""Folders of installed dependencies: nobody opens an editor or a repository there, and they are large."""
