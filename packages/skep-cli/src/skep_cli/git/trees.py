"""git's trees as values: a tree is a flat map from path to (mode, object id). Pure.

Paths are text with surrogate escapes for bytes that are no UTF-8, relative, `/` between parts.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
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
    """A root tree's id and the tree objects made, by id."""

    root: str
    objects: dict[str, bytes]


def build(entries: Entries, object_format: str) -> Built:
    """The tree objects of a flat map. Raises ValueError when a path is both a file and a folder."""
    return Forest(entries, object_format).build()


class Forest:
    """A tree that can be changed: building it again costs what was touched, whatever the size of the whole."""

    def __init__(self, entries: Entries, object_format: str) -> None:
        """Raises ValueError when a path is both a file and a folder."""
        self._format = object_format
        self._folders: dict[str, dict[str, Entry]] = {"": {}}
        self._stale: set[str] = {""}
        self._root = ""
        for path, entry in entries.items():
            self.put(path, entry)

    def put(self, path: str, entry: Entry) -> None:
        """The entry stands at the path. Raises ValueError when a path is both a file and a folder."""
        parent, _, name = path.rpartition("/")
        children = self._folders.get(parent)
        if children is None:
            children = self._plant(parent)
        there = children.get(name)
        if there is not None and there.mode == FOLDER:
            raise ValueError(f"{path} is both a file and a folder")
        children[name] = entry
        self._touch(parent)

    def drop(self, path: str) -> None:
        """The entry is gone, and every folder with it that it was the last of. Nothing happens when it is not there."""
        parent, _, name = path.rpartition("/")
        if name not in self._folders.get(parent, ()):
            return
        del self._folders[parent][name]
        self._touch(parent)
        while parent and not self._folders[parent]:
            del self._folders[parent]
            parent, _, name = parent.rpartition("/")
            del self._folders[parent][name]

    def has_folder(self, path: str) -> bool:
        return path in self._folders

    def below(self, path: str) -> Iterator[tuple[str, Entry]]:
        """Every entry at the path or below it."""
        parent, _, name = path.rpartition("/")
        there = self._folders.get(parent, {}).get(name)
        if there is not None and there.mode != FOLDER:
            yield path, there
        pending = [path]
        while pending:
            folder = pending.pop()
            for name, entry in self._folders.get(folder, {}).items():
                full = f"{folder}/{name}" if folder else name
                if entry.mode == FOLDER:
                    pending.append(full)
                else:
                    yield full, entry

    def build(self) -> Built:
        """The id of the whole, and the tree objects that were made since the last time."""
        objects: dict[str, bytes] = {}
        stale = [folder for folder in self._stale if folder in self._folders]
        for folder in sorted(stale, key=lambda path: path.count("/") if path else -1, reverse=True):
            content = _tree(self._folders[folder])
            oid = object_id("tree", content, self._format)
            objects[oid] = content
            if folder:
                parent, _, name = folder.rpartition("/")
                self._folders[parent][name] = Entry(FOLDER, oid)
            else:
                self._root = oid
        self._stale.clear()
        return Built(self._root, objects)

    def _plant(self, folder: str) -> dict[str, Entry]:
        missing: list[str] = []
        while folder not in self._folders:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        for folder in reversed(missing):
            parent, _, name = folder.rpartition("/")
            if name in self._folders[parent]:
                raise ValueError(f"{folder} is both a file and a folder")
            self._folders[parent][name] = Entry(FOLDER, "")
            self._folders[folder] = {}
        return self._folders[missing[0]]

    def _touch(self, folder: str) -> None:
        """A stale folder's parents are stale."""
        while folder not in self._stale:
            self._stale.add(folder)
            folder = folder.rpartition("/")[0]


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
