"""git's trees as values: a tree is a flat map from path to (mode, object id). Pure.

Paths are text with surrogate escapes for bytes that are no UTF-8, relative, `/` between parts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import NamedTuple

FILE, EXECUTABLE, LINK, FOLDER, SUBMODULE = 0o100644, 0o100755, 0o120000, 0o040000, 0o160000


class Entry(NamedTuple):
    """A file, link or submodule of a tree."""

    mode: int
    oid: str


Entries = Mapping[str, Entry]


def git_mode(st_mode: int) -> int:
    """The mode git keeps for a regular file or a link."""
    if stat.S_ISLNK(st_mode):
        return LINK
    return EXECUTABLE if st_mode & stat.S_IXUSR else FILE


def object_id(kind: str, content: bytes, object_format: str) -> str:
    digest = hashlib.new(object_format, b"%s %d\0" % (kind.encode(), len(content)), usedforsecurity=False)
    digest.update(content)
    return digest.hexdigest()


class Built(NamedTuple):
    """A root tree's id and every tree object below it, by id."""

    root: str
    objects: dict[str, bytes]


def build(entries: Entries, object_format: str) -> Built:
    """The tree objects of a flat map. Raises ValueError when a path is both a file and a folder."""
    folders: dict[str, dict[str, Entry]] = {"": {}}
    for path, entry in entries.items():
        parent, _, name = path.rpartition("/")
        folders.setdefault(parent, {})[name] = entry
    for folder in list(folders):
        while folder:
            folder = folder.rpartition("/")[0]
            if folder in folders:
                break
            folders[folder] = {}
    objects: dict[str, bytes] = {}
    ids: dict[str, str] = {}
    for folder in sorted(folders, key=lambda path: -path.count("/") if path else 1):
        content = _tree(folders[folder])
        oid = object_id("tree", content, object_format)
        objects[oid] = content
        ids[folder] = oid
        if folder:
            parent, _, name = folder.rpartition("/")
            if name in folders[parent]:
                raise ValueError(f"{folder} is both a file and a folder")
            folders[parent][name] = Entry(FOLDER, oid)
    return Built(ids[""], objects)


def _tree(children: Mapping[str, Entry]) -> bytes:
    """git sorts a folder as if its name ended in a slash."""
    rows = ((os.fsencode(name), entry) for name, entry in children.items())
    ordered = sorted(rows, key=lambda row: row[0] + b"/" if row[1].mode == FOLDER else row[0])
    return b"".join(b"%o %s\0%s" % (entry.mode, name, bytes.fromhex(entry.oid)) for name, entry in ordered)


class Change(NamedTuple):
    """What became of a path: `old` is None where it was added, `new` where it was deleted."""

    path: str
    old: Entry | None
    new: Entry | None


def changes(old: Entries, new: Entries) -> list[Change]:
    """What differs, sorted by path. A rename is a deletion and an addition."""
    paths = {path for path, entry in new.items() if old.get(path) != entry}
    paths.update(path for path in old if path not in new)
    return [Change(path, old.get(path), new.get(path)) for path in sorted(paths, key=os.fsencode)]


def apply(entries: Entries, what: Iterable[Change]) -> dict[str, Entry]:
    """The map with the changes made. Paths that a new file turns into folders, or the reverse, give way."""
    result = dict(entries)
    added: list[str] = []
    for change in what:
        if change.new is None:
            result.pop(change.path, None)
        else:
            result[change.path] = change.new
            added.append(change.path)
    for path in added:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            result.pop(parent, None)
    return result


# What git refuses to check out, since some file system takes it for `.git`: HFS+ ignores these code points, NTFS knows
# short names, drops dots and spaces at the end and takes `:` for a stream.
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GIT = re.compile(r"(\.git|git~[0-9]+)([ .]*|:.*)", re.IGNORECASE | re.DOTALL)


def poses_as_git(name: str) -> bool:
    """Whether a file name other than `.git` itself is `.git` to some file system."""
    return name != ".git" and bool(_GIT.fullmatch(_IGNORED_BY_HFS.sub("", name).split("\\")[0]))
