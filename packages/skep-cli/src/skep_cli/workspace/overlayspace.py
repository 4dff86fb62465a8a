"""The workspace as an overlay: the user's own tree at its own path, everything written kept in a layer of the run.

Nothing is copied, so the worker starts at once however large the tree is; what it held then is taken down by a thread
while the worker is at work (`survey`), and the patch is made of what stands in the upper layer (`layered`). The user
may go on working meanwhile. What they change is no part of the patch; the worker sees it where it has not written the
file itself, and the run says of every such path that the baseline has moved.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from skep_policy.boundary import Overlay, below
from skep_policy.report import Finding

from skep_cli.errors import NoOverlay, SkepError
from skep_cli.evidence.state import RunFolder
from skep_cli.findings import is_whiteout
from skep_cli.git.objects import Store
from skep_cli.git.trees import Entry
from skep_cli.stages.order import Bounds, Order, Place
from skep_cli.stages.verify import write_all

from .copier import Copier
from .layer import Layer, read_upper
from .layered import Comparison, baseline_of, rule_files
from .moved import MOVED, head_moved
from .prepared import keep_ignored
from .removal import remove
from .snapshot import Baseline, Result, Rules
from .survey import Survey, Surveyor, Taken, index_of, moment, take_index

LISTED = 20
"""Moved paths that are findings of their own."""


def find_bwrap(order: Order, bounds: Bounds, folder: RunFolder, state: Path) -> str:
    """The bwrap for an overlay over the tree, tried with layers where those of the run will be. Raises NoOverlay."""
    for path in (str(state), str(folder.path), order.results or str(folder.results)):
        if below(os.path.realpath(path), order.root):
            raise NoOverlay(f"{path} is inside the tree, and a layer cannot lie in what it is laid over")
    outside = _git_outside(order)
    if outside and below(order.root, outside):
        raise NoOverlay(f"the tree is inside its own git dir {outside}")
    folder.workspace.mkdir(mode=0o700)
    try:
        return bounds.overlay_bwrap(str(folder.workspace))
    finally:
        remove(folder.workspace)


def warm(order: Order, bounds: Bounds, folder: RunFolder) -> tuple[dict[str, str], bool | str]:
    """The caches that can be laid over, and whether that is all of them, or why not."""
    found: dict[str, str] = {}
    cold: list[str] = []
    for seen, lower in (order.caches or {}).items():
        folder.workspace.mkdir(mode=0o700)
        try:
            if below(lower, order.root) or below(order.root, lower) or below(str(folder.path), lower):
                raise NoOverlay("the tree and the records of runs lie apart from a cache")
            bounds.overlay_bwrap(str(folder.workspace), lower)
            found[seen] = lower
        except NoOverlay as error:
            cold.append(f"{lower}: {error.message}")
        finally:
            remove(folder.workspace)
    if not order.caches:
        cold.append("the toolchains have none on this machine")
    return found, "; ".join(cold) or True


def _git_outside(order: Order) -> str | None:
    """What a linked worktree or a submodule has outside of its tree."""
    repo = order.repository
    return None if repo is None or below(repo.common_dir, order.root) else repo.common_dir


class OverlaySpace:
    """The workspace of one run; its layers are in `folder.workspace`, those of the verification in `folder.verify`."""

    kind = "overlay"
    before = None

    def __init__(
        self, order: Order, folder: RunFolder, copier: Copier, store: Store, bwrap: str, caches: Mapping[str, str]
    ) -> None:
        """`caches` are folders of the host by where the worker has them."""
        self._order = order
        self._caches = caches
        self._folder = folder
        self._copier = copier
        self._store = store
        self._bwrap = bwrap
        self._prepared = False
        self._taken: Taken | None = None
        self._since = 0
        self._survey: Survey | None = None
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._look, name="skep-survey", daemon=True)
        self._moved: dict[str, bool] = {}

    def prepare(self, say: Callable[[str], None]) -> Place:
        say(f"an overlay over {self._order.root}")
        place = self._layers(self._folder.workspace)
        if self._order.repository:
            self._taken = take_index(self._order.repository, self._folder.git)
        excludes = [path for path in (self._order.exclude, self._order.user_exclude) if path]
        self._surveyor = Surveyor(self._order.root, self._store, self._taken, excludes)
        return place

    def ready(self) -> None:
        self._since = moment()

    def set_up(self) -> None:
        order, folder = self._order, self._folder
        folder.setup.mkdir(mode=0o700)
        rules = Rules(order.git, folder.git, folder.setup / "rules", more=order.ignore)
        known = index_of(self._store, self._taken)
        with Layer(str(self._folder.workspace / "tree/upper"), ours=True) as up, Layer(order.root, ours=False) as low:
            found = read_upper(up)
            left = [*found.files, *found.gone, *(f"{path}/." for path in found.opaque)]
            asked = [path for path in left if path not in known]
            files = rule_files(low, asked)
            rules.take(Path(order.root), files, exclude=order.exclude, user=order.user_exclude)
            ignored = rules.ignored(asked)
        keep_ignored(found, ignored, self._folder.workspace / "tree/upper", folder.setup / "upper", self._copier)
        self._prepared = True

    def started(self) -> None:
        self._thread.start()

    def _look(self) -> None:
        try:
            self._survey = self._surveyor.survey(self._since)
        except (OSError, SkepError) as error:
            self._problem = error

    def _layers(self, folder: Path) -> Place:
        tops = [(self._order.root, self._order.root, "tree")]
        if outside := _git_outside(self._order):
            tops.append((outside, outside, "git"))
        tops += [(seen, path, f"cache-{number}") for number, (seen, path) in enumerate(self._caches.items())]
        overlays: dict[str, Overlay] = {}
        for seen, path, name in tops:
            upper, work = folder / name / "upper", folder / name / "work"
            upper.mkdir(parents=True)
            work.mkdir()
            upper.chmod(stat.S_IMODE(os.stat(path).st_mode) & 0o777 | 0o700)
            overlays[seen] = Overlay(path, str(upper), str(work))
        folder.chmod(0o700)
        return Place(str(folder), overlays, self._bwrap)

    def result(self) -> tuple[Baseline, Result]:
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._look()  # the worker could not be executed, so nobody started the thread
        if self._problem is not None:
            raise self._problem
        survey = self._survey
        assert survey is not None
        order, repo = self._order, self._order.repository
        rules = Rules(order.git, self._folder.git, self._folder.rules, more=order.ignore)
        with (
            Layer(str(self._folder.workspace / "tree/upper"), ours=True) as up,
            Layer(order.root, ours=False) as low,
        ):
            comparison = Comparison(survey, read_upper(up), up, low, rules, self._store)
            old, result = comparison.run(Path(order.root), exclude=order.exclude, user=order.user_exclude)
        kept = comparison.kept(repo.head if repo else None, self._taken.mtime_ns if self._taken else 0)
        self._moved = self._surveyor.moved_since(survey)
        result.findings += self._told(comparison.both)
        return baseline_of(comparison, survey, old, kept), result

    def _told(self, both: Iterable[str]) -> list[Finding]:
        """What the user did meanwhile."""
        found = head_moved(self._order)
        touched = sorted(both)
        for path in touched[:LISTED]:
            detail = "you changed it while the worker did: its version may hold yours, and the patch both"
            found.append(Finding(MOVED, path, detail))
        others = sorted(self._moved.keys() - set(touched))
        for path in others[:LISTED]:
            detail = "you changed it while the worker ran, which may have seen it; no part of the patch"
            found.append(Finding(MOVED, path, detail))
        more = max(0, len(touched) - LISTED) + max(0, len(others) - LISTED)
        if more:
            found.append(Finding(MOVED, ".", f"{more} more files were changed while the worker ran"))
        return found

    def lay_out(self, before: Baseline, after: Result) -> Place:
        place = self._layers(self._folder.verify)
        upper = self._folder.verify / "tree/upper"
        if self._prepared:
            mode = stat.S_IMODE(upper.stat().st_mode)
            upper.rmdir()
            (self._folder.setup / "upper").rename(upper)
            upper.chmod(mode)
        new = {change.path: change.new for change in after.changes if change.new}
        gone = {change.path for change in after.changes if change.new is None}
        for path, there in self._moved.items():
            if path in new or path in gone:
                continue
            if entry := before.entries.get(path):
                new[path] = entry
            elif there:
                gone.add(path)
        with Layer(self._order.root, ours=False) as low:
            layout = _Layout(upper, low, new, gone)
            layout.write(self._store, before)
        return place


class _Layout:
    """An upper layer written by us: files of a result, whiteouts for what it has not."""

    def __init__(self, upper: Path, low: Layer, new: Mapping[str, Entry], gone: set[str]) -> None:
        self._upper = upper
        self._low = low
        self._new = new
        self._gone = gone
        self._made = {""}

    def write(self, store: Store, before: Baseline) -> None:
        """Raises OSError."""
        folders: dict[str, int] = {}
        for path in (*self._new, *self._gone):
            folder = path.rpartition("/")[0]
            while folder and folder not in folders:
                info = self._low.stat(folder)
                if info is not None and stat.S_ISDIR(info.st_mode):
                    folders[folder] = info.st_mode
                folder = folder.rpartition("/")[0]
        write_all(self._upper, store, self._new, {})
        emptied: set[str] = set()
        for path in sorted(self._gone):
            if self._low.stat(path) is not None and self._whiteout(path):
                emptied.add(path.rpartition("/")[0])
        for folder in sorted(emptied, key=len, reverse=True):
            self._drop_empty(folder)
        for folder, mode in folders.items():
            there = self._upper / folder
            if there.is_dir() and not there.is_symlink():
                there.chmod(mode & 0o777)

    def _whiteout(self, path: str) -> bool:
        """Whether the path is hidden; it is not where the result has something there or above it."""
        there = self._upper
        for part in path.split("/")[:-1]:
            there = there / part
            if there.is_symlink() or (there.exists() and not there.is_dir()):
                return False
        if os.path.lexists(self._upper / path):
            return False
        there.mkdir(parents=True, exist_ok=True)
        os.mknod(self._upper / path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
        return True

    def _drop_empty(self, folder: str) -> None:
        """A folder with nothing left in it goes too, and those above it."""
        while folder:
            here = self._upper / folder
            names = {name for name, _ in self._low.entries(folder)}
            hidden = {entry.name for entry in os.scandir(here) if is_whiteout(entry.stat(follow_symlinks=False))}
            if names != hidden or hidden != set(os.listdir(here)):
                return
            remove(here)
            os.mknod(here, stat.S_IFCHR | 0o600, os.makedev(0, 0))
            folder = folder.rpartition("/")[0]
