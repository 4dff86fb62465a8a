"""The result of a run in an overlay: what stands in the upper layer, against what the survey knows of those paths.

Only paths the worker touched are looked at, so what a patch costs grows with what was changed. Of each such path the
baseline is what the user's tree held when the run began: from the tree itself where it has not changed since, else
what the survey took down, else what the index said. A path that was ignored then stays out of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from skep_policy.report import Finding

from skep_cli.errors import SkepError
from skep_cli.git.objects import Source, Store
from skep_cli.git.trees import Change, Entry, git_mode, poses_as_git

from .layer import Layer, Upper, is_content
from .listing import Stamp, stamp_of
from .snapshot import MAX_FILE, Baseline, Result, Rules, is_kept, too_large
from .survey import Survey


class Comparison:
    """One comparison; `run` once."""

    def __init__(self, survey: Survey, upper: Upper, up: Layer, low: Layer, rules: Rules, store: Store) -> None:
        assert survey.forest is not None
        self._survey = survey
        self._forest = survey.forest
        self._upper = upper
        self._up, self._low = up, low
        self._rules = rules
        self._store = store
        self._old: dict[str, Entry | None] = {}
        """What the baseline holds at paths the worker touched."""
        self._lower: dict[str, Stamp] = {}
        self._sources: list[Source] = []
        self._findings = [*survey.findings, *upper.findings]
        self.both: set[str] = set()
        """What the worker and the user have both changed."""

    def run(self, root: Path, *, exclude: str | None, user: str | None) -> tuple[dict[str, Entry | None], Result]:
        """What the baseline holds at touched paths, and the result. Everything is in the store. Raises OSError,
        SkepError.
        """
        gone = self._gone()
        present = {path for path in self._upper.files if path not in self._survey.left_out}
        self._left_out()
        ignored = self._ignored(gone | present, root, exclude, user)
        for path in sorted((gone | present) - ignored):
            self._remember(path)
        new = self._contents(sorted(present - ignored))
        changes = {path: new.get(path) for path in self._old if path in new or path in gone - present}
        changed = [Change(path, self._old[path], entry) for path, entry in changes.items() if self._old[path] != entry]
        changed.sort(key=lambda change: os.fsencode(change.path))
        self._findings += [
            Finding("nested-repository", path, "has a .git of its own, which is left out; its files are in the patch")
            for path in self._upper.nested
            if self._low.stat(f"{path}/.git") is None
        ]
        self._store.add(self._sources)
        try:
            baseline = self._plant({path: entry for path, entry in self._old.items() if entry})
            result = self._plant({change.path: change.new for change in changed})
        except ValueError as error:
            raise SkepError(f"what the worker left is no tree: {error}") from None
        self.baseline_tree = baseline
        return self._old, Result({}, result, changed, self._findings)

    def _plant(self, what: dict[str, Entry | None]) -> str:
        for path in [path for path, entry in what.items() if entry is None]:
            self._forest.drop(path)
        for path, entry in what.items():
            if entry is not None:
                self._forest.put(path, entry)
        return self._store.add_built(self._forest.build())

    def _gone(self) -> set[str]:
        """Files of the baseline that what the worker did has taken away, those it wrote anew included."""
        cut = [*self._upper.gone, *self._upper.opaque]
        for path in self._upper.files:
            info = self._low.stat(path)
            if self._forest.has_folder(path) or (info is not None and stat.S_ISDIR(info.st_mode)):
                cut.append(path)
        for path in self._upper.folders:
            info = self._low.stat(path)
            if path in self._survey.entries or is_content(info):
                cut.append(path)
        found: set[str] = set()
        for path in cut:
            found.update(inside for inside, _ in self._forest.below(path))
            if self._is_unknown(path):
                found.update(inside for inside, _ in self._low.files(path))
        return found

    def _is_unknown(self, path: str) -> bool:
        """Whether the survey did not look there: no repository, or another one."""
        if not self._survey.index and not self._survey.stamps:
            return True
        return any(path == folder or path.startswith(folder + "/") for folder in self._survey.foreign)

    def _left_out(self) -> None:
        for path in sorted(self._survey.left_out):
            if path in self._upper.files:
                self._findings.append(Finding("left-out", path, "was no part of the baseline, so neither of the patch"))

    def _ignored(self, paths: Iterable[str], root: Path, exclude: str | None, user: str | None) -> set[str]:
        """Those the baseline's rules ignore; what was in the baseline never is."""
        asked = [path for path in paths if path not in self._survey.entries]
        self._rules.take(root, rule_files(self._low, asked), exclude=exclude, user=user)
        return set(self._rules.ignored(asked))

    def _remember(self, path: str) -> None:
        """What the baseline holds at a path is known, with its content."""
        known = self._survey.entries.get(path)
        info = self._low.stat(path)
        self._old[path] = known
        if info is None or not is_content(info) or info.st_ctime_ns >= self._survey.since:
            if info is not None and is_content(info):
                self.both.add(path)
            return
        stamp = self._lower[path] = stamp_of(info)
        if path in self._survey.hashed and self._survey.stamps.get(path) == stamp:
            return
        if known is None and (stamp.size > MAX_FILE or any(poses_as_git(name) for name in path.split("/"))):
            return
        try:
            source = self._low.source(path, stamp.mode, self._store.object_format)
        except OSError:
            return  # the worker, who is the same user, could not read it either
        self._old[path] = Entry(git_mode(stamp.mode), source.oid)
        if known is None or known.oid != source.oid:
            self._sources.append(source)

    def _contents(self, paths: Iterable[str]) -> dict[str, Entry]:
        """What the worker wrote, as entries; what a patch cannot hold is a finding and stays as it was."""
        found: dict[str, Entry] = {}
        for path in paths:
            stamp = self._upper.files[path]
            if any(poses_as_git(name) for name in path.split("/")):
                self._findings.append(
                    Finding("poses-as-git", path, "a .git to some file systems: left out of the patch")
                )
            elif stamp.size > MAX_FILE:
                self._findings.append(too_large(path))
            else:
                source = self._up.source(path, stamp.mode, self._store.object_format)
                found[path] = Entry(git_mode(stamp.mode), source.oid)
                if found[path] != self._old.get(path):
                    self._sources.append(source)
        return found

    def kept(self, head: str | None, written: int) -> list[str]:
        """Paths that differ from HEAD as bytes only, since the user's index says so."""
        survey = self._survey
        asked = [path for path, entry in survey.index.items() if entry.assumed]
        asked += [
            path
            for path, old in self._old.items()
            if old and path in self._lower and path in survey.index and old != _indexed(survey, path)
        ]
        if not asked or head is None:
            return []
        tree = self._store.tree(head)
        now = {**survey.entries, **{path: entry for path, entry in self._old.items() if entry}}
        stamps = {**survey.stamps, **self._lower}
        differing = [Change(path, tree.get(path), now.get(path)) for path in asked if tree.get(path) != now.get(path)]
        return [change.path for change in differing if is_kept(change, survey.index, stamps, written)]


def rule_files(low: Layer, paths: Iterable[str]) -> list[str]:
    """The `.gitignore` files that have a say on the paths."""
    folders: set[str] = {""}
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    found: list[str] = []
    for folder in sorted(folders):
        path = f"{folder}/.gitignore" if folder else ".gitignore"
        info = low.stat(path)
        if info is not None and stat.S_ISREG(info.st_mode):
            found.append(path)
    return found


def _indexed(survey: Survey, path: str) -> Entry:
    entry = survey.index[path]
    return Entry(entry.mode, entry.oid)


def baseline_of(comparison: Comparison, survey: Survey, old: dict[str, Entry | None], kept: list[str]) -> Baseline:
    entries = {**survey.entries, **{path: entry for path, entry in old.items() if entry}}
    return Baseline(entries, comparison.baseline_tree, {}, frozenset(), kept, sorted(survey.foreign), {}, [])
