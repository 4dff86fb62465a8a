"""What the worker was given and what it left, as trees of git, and what of it is the patch.

The baseline is hashed from the copy itself, before the worker starts: tracked files as they are, uncommitted and
untracked ones included, ignored ones left out. Afterwards only files whose stamp changed are hashed again; a stamp
holds the ctime in nanoseconds, which no worker can set, so an edit that restores size and mtime is seen. Which new
files are ignored is decided by the rules of the baseline: `.gitignore` files as they were, `info/exclude` and the
user's own excludes file; tracked files are compared whatever a rule says.

Everything is hashed as it is on disk. Where the repository stores something else than it checks out (line endings,
filters, another encoding) the baseline differs from HEAD in every such file; `kept` lists what the user's index knows
to be unchanged.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from skep_policy.report import Finding

from skep_cli.git.hostgit import Git
from skep_cli.git.objects import Source, Store, file_source, hash_file
from skep_cli.git.repository import IndexEntry, Repository
from skep_cli.git.trees import SUBMODULE, Change, Entry, changes, git_mode, poses_as_git

from .listing import Listing, Stamp

MAX_FILE = 256 << 20
"""Bytes of a file that is compared: larger ones are data, and a patch that holds one is of no use to a reader."""


class Baseline(msgspec.Struct):
    """The state before the worker."""

    entries: dict[str, Entry]
    tree: str
    stamps: dict[str, Stamp]
    ignored: frozenset[str]
    kept: list[str]
    """Paths that differ from HEAD as bytes only: nobody's work."""
    foreign: list[str]
    """Folders of other repositories: submodules, and repositories inside the tree that the outer one does not track."""
    folders: dict[str, int]
    findings: list[Finding]
    """What of the tree could not be taken in."""


class Result(msgspec.Struct):
    """The state after the worker."""

    entries: dict[str, Entry]
    tree: str
    changes: list[Change]
    findings: list[Finding]


class Rules:
    """The ignore rules of the baseline, in a folder of their own that holds `.gitignore` files and nothing else."""

    def __init__(self, program: str, git_dir: Path, folder: Path, *, more: Iterable[str] = ()) -> None:
        """`more` are patterns that are ignored too, what the repository's exclude file says notwithstanding."""
        self._more = "".join(f"{pattern}\n" for pattern in more)
        self._git = Git(program, git_dir, work_tree=folder)
        self._folder = folder
        self._settings: dict[str, str] = {}

    def take(self, root: Path, files: Iterable[str], *, exclude: str | None, user: str | None) -> None:
        """Copy the rules: `.gitignore` files below `root`, the repository's exclude file, the user's own."""
        self._folder.mkdir(mode=0o700)
        for path in files:
            if path.rpartition("/")[2] == ".gitignore" and not (root / path).is_symlink():
                there = self._folder / path
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / path, there, follow_symlinks=False)
        own = Path(self._git.git_dir) / "info"
        if exclude and os.path.isfile(exclude):
            shutil.copyfile(exclude, own / "exclude")
        if self._more:
            with (own / "exclude").open("a") as file:
                file.write("\n" + self._more)
        if user and os.path.isfile(user):
            shutil.copyfile(user, own / "user-exclude")
            self._settings = {"core.excludesFile": str(own / "user-exclude")}

    def ignored(self, paths: Iterable[str]) -> frozenset[str]:
        """Those of the paths (files and links) that a rule ignores."""
        feed = b"".join(b"./%s\0" % os.fsencode(path) for path in paths)  # `./`: a name like `:(top)x` is magic to git
        if not feed:
            return frozenset()
        answer = self._git.run(
            "check-ignore", "--no-index", "--stdin", "-z", stdin=feed, ok=(0, 1), settings=self._settings
        )
        return frozenset(os.fsdecode(path[2:]) for path in answer.split(b"\0") if path)


class Snapshot:
    """Takes the baseline of a workspace, and later its result."""

    def __init__(self, root: Path, store: Store, rules: Rules) -> None:
        self._root = root
        self._store = store
        self._rules = rules

    def baseline(
        self,
        listing: Listing,
        *,
        index: Mapping[str, IndexEntry],
        sources: Mapping[str, Stamp],
        repository: Repository | None,
        index_mtime_ns: int,
    ) -> Baseline:
        """The tree of what was copied, all its objects in the store. Raises OSError, SkepError."""
        untracked = [path for path in listing.files if path not in index]
        ignored = set(self._rules.ignored(untracked))
        for path, stamp in listing.files.items():
            if stamp.size > MAX_FILE:
                ignored.add(path)
                listing.report("too-large", path, f"over {MAX_FILE >> 20} MiB: copied, but no part of the patch")
            elif any(poses_as_git(name) for name in path.split("/")):
                ignored.add(path)
        listed = {path: stamp for path, stamp in listing.files.items() if path not in ignored}
        entries, sizes = self._hash(listed)
        self._write(entries, listed, sizes)
        tree = self._store.add_tree(entries)
        foreign = sorted(path for path, entry in index.items() if entry.mode == SUBMODULE)
        foreign += [path for path in listing.nested if path not in foreign and not _tracks_below(index, path)]
        kept: list[str] = []
        if repository and repository.head:
            head = self._store.tree(repository.head)
            differing = changes(head, entries)
            kept = [change.path for change in differing if is_kept(change, index, sources, index_mtime_ns)]
        return Baseline(
            *(entries, tree, dict(listing.files), frozenset(ignored), kept, foreign, listing.folders, listing.findings)
        )

    def result(self, before: Baseline, now: Listing) -> Result:
        """What the worker left. Raises OSError, SkepError."""
        findings = list(now.findings)
        changed: dict[str, Stamp] = {}
        fresh: dict[str, Stamp] = {}
        for path, stamp in now.files.items():
            if path in before.entries:
                if before.stamps[path] != stamp:
                    changed[path] = stamp
            elif path in before.ignored:
                if stamp.size > MAX_FILE and before.stamps[path] != stamp:
                    findings.append(too_large(path))
            else:
                fresh[path] = stamp
        ignored = self._rules.ignored(fresh)
        changed.update((path, stamp) for path, stamp in fresh.items() if path not in ignored)
        findings += [
            Finding("nested-repository", path, "has a .git of its own, which is left out; its files are in the patch")
            for path in now.nested
            if path not in before.foreign
        ]
        entries = {path: entry for path, entry in before.entries.items() if path in now.files}
        for path in [path for path in changed if any(poses_as_git(name) for name in path.split("/"))]:
            del changed[path]
            findings.append(Finding("poses-as-git", path, "a .git to some file systems: left out of the patch"))
        for path in [path for path, stamp in changed.items() if stamp.size > MAX_FILE]:
            del changed[path]
            findings.append(too_large(path))
        hashed, sizes = self._hash(changed)
        self._write(hashed, changed, sizes)
        entries.update(hashed)
        return Result(entries, self._store.add_tree(entries), changes(before.entries, entries), findings)

    def _hash(self, files: Mapping[str, Stamp]) -> tuple[dict[str, Entry], dict[str, int]]:
        entries: dict[str, Entry] = {}
        sizes: dict[str, int] = {}
        for path, stamp in files.items():
            full = os.path.join(self._root, path)
            try:
                oid, sizes[path] = hash_file(full, stamp.mode, self._store.object_format)
            except PermissionError:
                os.chmod(
                    full, 0o600
                )  # a file the worker closed, in a folder of ours; `files` holds no links that open would follow
                oid, sizes[path] = hash_file(full, stamp.mode, self._store.object_format)
            entries[path] = Entry(git_mode(stamp.mode), oid)
        return entries, sizes

    def _write(self, entries: Mapping[str, Entry], files: Mapping[str, Stamp], sizes: Mapping[str, int]) -> None:
        def source(path: str) -> Source:
            return file_source(os.path.join(self._root, path), files[path].mode, entries[path].oid, sizes[path])

        self._store.add(source(path) for path in entries)


def too_large(path: str) -> Finding:
    return Finding("too-large", path, f"over {MAX_FILE >> 20} MiB: its change is left out of the patch")


def _tracks_below(index: Mapping[str, IndexEntry], folder: str) -> bool:
    return any(path.startswith(folder + "/") for path in index)


def is_kept(change: Change, index: Mapping[str, IndexEntry], sources: Mapping[str, Stamp], index_mtime_ns: int) -> bool:
    """Whether the user's index knows a difference from HEAD to be none.

    It has the very entry of HEAD, and the file's stamp of when that was last found true; a stamp as young as the index
    itself proves nothing (the file may have changed in the same tick).
    """
    entry = index.get(change.path)
    if entry is None or change.old is None or entry.stage or (entry.mode, entry.oid) != change.old:
        return False
    if entry.assumed or entry.mode == SUBMODULE:
        return True
    stamp = sources.get(change.path)
    if stamp is None or stamp.mtime_ns >= index_mtime_ns:
        return False
    low = (1 << 32) - 1
    return (stamp.mtime_ns, stamp.ctime_ns, stamp.ino & low, stamp.size & low) == (
        entry.mtime_ns,
        entry.ctime_ns,
        entry.ino & low,
        entry.size & low,
    )
