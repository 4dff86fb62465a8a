"""What the user's own tree held when a run began, taken down while its worker is already at work.

An overlay shows the tree as it is, so nothing has to be copied or hashed before the worker starts, and what a baseline
costs is what git's index does not know: of a tracked file whose stamp the index has, the content is known without
opening it; what differs, and what is untracked and not ignored, is hashed and kept. The moment that counts is `since`,
the kernel's clock before the worker could start. A file whose ctime is later was changed by the user meanwhile (the
worker cannot reach the tree): it has moved, and what it held then is what the index says, or not known.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import msgspec
from skep_policy.report import Finding

from skep_cli.git.hostgit import Git
from skep_cli.git.objects import Source, Store
from skep_cli.git.repository import IndexEntry, Repository, entries_of
from skep_cli.git.trees import SUBMODULE, Entry, Forest, git_mode, poses_as_git

from .layer import Layer
from .listing import Stamp, stamp_of
from .snapshot import MAX_FILE

CLOCK = getattr(time, "CLOCK_REALTIME_COARSE", 5)
"""What stamps files (Linux); Python names it nowhere."""
LOW = (1 << 32) - 1
"""The index keeps so much of inode and size."""


class Taken(msgspec.Struct, frozen=True):
    """The user's index as it was, in a file of ours (None when there was none), and when it was written."""

    index: Path | None
    mtime_ns: int


class Survey(msgspec.Struct):
    """`entries` is the baseline as far as it is known without looking at what the worker touched."""

    since: int
    entries: dict[str, Entry] = msgspec.field(default_factory=dict[str, Entry])
    stamps: dict[str, Stamp] = msgspec.field(default_factory=dict[str, Stamp])
    index: dict[str, IndexEntry] = msgspec.field(default_factory=dict[str, IndexEntry])
    hashed: set[str] = msgspec.field(default_factory=set[str])
    """Whose entry is of the bytes on disk, and not what the index says."""
    foreign: list[str] = msgspec.field(default_factory=list[str])
    left_out: set[str] = msgspec.field(default_factory=set[str])
    moved: set[str] = msgspec.field(default_factory=set[str])
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])
    forest: Forest | None = None


def moment() -> int:
    """A time in nanoseconds: what was changed before has an earlier ctime, what is changed from now on has not."""
    before = time.clock_gettime_ns(CLOCK)
    deadline = time.monotonic() + 1.0
    while (now := time.clock_gettime_ns(CLOCK)) <= before and time.monotonic() < deadline:
        time.sleep(0.001)
    return now


def take_index(repository: Repository, folder: Path) -> Taken:
    """A copy of the user's index in `folder`, with what a split index shares. Raises OSError."""
    source = Path(repository.git_dir, "index")
    try:
        written = source.stat().st_mtime_ns
        _copy(source, folder / "user-index")
    except FileNotFoundError:
        return Taken(None, 0)
    for shared in Path(repository.git_dir).glob("sharedindex.*"):
        _copy(shared, folder / shared.name)
    return Taken(folder / "user-index", written)


def index_of(store: Store, taken: Taken | None) -> dict[str, IndexEntry]:
    """What the user's index knew."""
    if taken is None or taken.index is None:
        return {}
    return entries_of(Git(store.git.program, store.git.git_dir, index=taken.index))


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as reader, target.open("xb") as writer:
        left = os.fstat(reader.fileno()).st_size
        while left > 0 and (sent := os.sendfile(writer.fileno(), reader.fileno(), None, left)):
            left -= sent


class Surveyor:
    """Looks at one tree of the user's."""

    def __init__(self, root: str, store: Store, taken: Taken | None, excludes: list[str]) -> None:
        """`taken` is None for a folder that is no repository: nothing is known of it beforehand then."""
        self._root = root
        self._store = store
        self._taken = taken
        self._excludes = [path for path in excludes if os.path.isfile(path)]
        self._folders: dict[str, int | None] = {"": 0}

    def survey(self, since: int) -> Survey:
        """Everything, its objects in the store. Raises OSError, SkepError."""
        found = Survey(since)
        found.index = index_of(self._store, self._taken)
        unknown = self._tracked(found)
        unknown += self._untracked(found)
        with Layer(self._root, ours=False) as layer:
            self._hash(found, unknown, layer)
        try:
            found.forest = Forest(found.entries, self._store.object_format)
        except ValueError:  # a file of the index became a folder with files while we looked
            found.entries = {path: entry for path, entry in found.entries.items() if path not in found.moved}
            found.forest = Forest(found.entries, self._store.object_format)
        self._store.add_built(found.forest.build())
        return found

    def moved_since(self, found: Survey) -> dict[str, bool]:
        """What is not what it was, whether it is there now."""
        self._folders = {"": 0}
        moved = {path: self._look(path) is not None for path in found.moved}
        for path, stamp in found.stamps.items():
            now = self._look(path)
            if now is None or stamp_of(now) != stamp:
                moved[path] = now is not None
        known = found.stamps.keys() | found.left_out
        moved.update((path, True) for path in self._others() if path not in known and not path.endswith("/"))
        return moved

    def _tracked(self, found: Survey) -> list[str]:
        """Entries of what the index knows; returns what has to be read."""
        unknown: list[str] = []
        written = self._taken.mtime_ns if self._taken else 0
        for path, entry in found.index.items():
            if entry.mode == SUBMODULE:
                found.foreign.append(path)
                continue
            info = self._look(path)
            if info is None:
                if not entry.assumed and self._left_since(path, found.since):
                    found.moved.add(path)
                    found.entries[path] = Entry(entry.mode, entry.oid)
                continue
            stamp = found.stamps[path] = stamp_of(info)
            if stamp.ctime_ns >= found.since:
                found.moved.add(path)
                found.entries[path] = Entry(entry.mode, entry.oid)
            elif not (stat.S_ISREG(stamp.mode) or stat.S_ISLNK(stamp.mode)):
                del found.stamps[path]
            elif is_as_indexed(entry, stamp, written):
                found.entries[path] = Entry(entry.mode, entry.oid)
            else:
                unknown.append(path)
        return unknown

    def _look(self, path: str) -> os.stat_result | None:
        if self._folder(path.rpartition("/")[0]) is None:
            return None
        try:
            return os.lstat(f"{self._root}/{path}")
        except OSError:
            return None

    def _folder(self, folder: str) -> int | None:
        """The ctime of a folder that is one all the way down, without links."""
        if folder in self._folders:
            return self._folders[folder]
        todo: list[str] = []
        while folder not in self._folders:
            todo.append(folder)
            folder = folder.rpartition("/")[0]
        above = self._folders[folder]
        for part in reversed(todo):
            if above is not None:
                try:
                    info = os.lstat(f"{self._root}/{part}")
                    above = info.st_ctime_ns if stat.S_ISDIR(info.st_mode) else None
                except OSError:
                    above = None
            self._folders[part] = above
        return above

    def _left_since(self, path: str, since: int) -> bool:
        """Whether a missing file may have gone away since then: the folder it is missing from has changed."""
        folder = path.rpartition("/")[0]
        while folder and self._folder(folder) is None:
            folder = folder.rpartition("/")[0]
        try:
            return os.lstat(f"{self._root}/{folder}").st_ctime_ns >= since
        except OSError:
            return True

    def _untracked(self, found: Survey) -> list[str]:
        unknown: list[str] = []
        for path in self._others():
            if path.endswith("/"):
                found.foreign.append(path[:-1])
                continue
            info = self._look(path)
            if info is None or not (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)):
                continue
            found.stamps[path] = stamp_of(info)
            if info.st_ctime_ns >= found.since:
                found.moved.add(path)
            else:
                unknown.append(path)
        return unknown

    def _others(self) -> list[str]:
        """Untracked files that no rule ignores; repositories inside the tree with a slash at their end."""
        if self._taken is None:
            return []
        git = Git(self._store.git.program, self._store.git.git_dir, work_tree=Path(self._root), index=self._taken.index)
        rules = [f"--exclude-from={path}" for path in self._excludes]
        listing = git.run("ls-files", "--others", "-z", "--exclude-per-directory=.gitignore", *rules)
        return [os.fsdecode(path) for path in listing.split(b"\0") if path]

    def _hash(self, found: Survey, paths: list[str], layer: Layer) -> None:
        """The entries of files as they are on disk, their content in the store."""
        sources: list[Source] = []
        for path in sorted(paths):
            stamp = found.stamps[path]
            if stamp.size > MAX_FILE or any(poses_as_git(name) for name in path.split("/")):
                found.left_out.add(path)
                continue
            try:
                source = layer.source(path, stamp.mode, self._store.object_format)
            except OSError as error:
                found.left_out.add(path)
                found.findings.append(Finding("skipped", path, f"cannot be read: {error.strerror}"))
                continue
            now = layer.stat(path)
            if now is None or stamp_of(now) != stamp:
                found.moved.add(path)
                continue
            found.entries[path] = Entry(git_mode(stamp.mode), source.oid)
            found.hashed.add(path)
            entry = found.index.get(path)
            if entry is None or entry.oid != source.oid:
                sources.append(source)
        self._store.add(sources)


def is_as_indexed(entry: IndexEntry, stamp: Stamp, written: int) -> bool:
    """Whether the index, written at `written`, knows the content of a file with this stamp.

    A stamp as young as the index itself proves nothing (the file may have changed in the same tick).
    """
    if entry.stage or stat.S_IFMT(entry.mode) != stat.S_IFMT(stamp.mode) or stamp.mtime_ns >= written:
        return False
    return (stamp.mtime_ns, stamp.ctime_ns, stamp.ino & LOW, stamp.size & LOW) == (
        entry.mtime_ns,
        entry.ctime_ns,
        entry.ino & LOW,
        entry.size & LOW,
    )
