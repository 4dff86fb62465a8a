"""The workspace as a copy: made and hashed before the worker starts, the same on every system and in every mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from skep_cli.evidence.state import RunFolder
from skep_cli.git import repository
from skep_cli.git.objects import Store
from skep_cli.screen.render import count
from skep_cli.stages import verify
from skep_cli.stages.order import Order, Place

from .copier import Copier, settle
from .listing import scan
from .moved import head_moved
from .removal import remove
from .snapshot import Baseline, Result, Rules, Snapshot


class CopySpace:
    """The workspace of one run, in `folder.workspace`."""

    kind = "copy"

    def __init__(self, order: Order, folder: RunFolder, copier: Copier, store: Store) -> None:
        self._order = order
        self._folder = folder
        self._copier = copier
        self._store = store
        self.before: Baseline | None = None
        self._prepared: frozenset[str] | None = None
        """What a setup has left that is ignored; it is in `folder.setup`."""

    def prepare(self, say: Callable[[str], None]) -> Place:
        order, folder, repo = self._order, self._folder, self._order.repository
        say(f"copying {order.root}")
        copy = self._copier.copy(Path(order.root), folder.workspace)
        rules = Rules(order.git, folder.git, folder.rules, more=order.ignore)
        rules.take(folder.workspace, copy.listing.files, exclude=order.exclude, user=order.user_exclude)
        self._rules = rules
        self._snapshot = Snapshot(folder.workspace, self._store, rules)
        self.before = self._snapshot.baseline(
            copy.listing,
            index=repository.index(order.git, repo) if repo else {},
            sources=copy.sources,
            repository=repo,
            index_mtime_ns=repository.index_mtime_ns(repo) if repo else 0,
        )
        if repo:
            repository.detach(order.git, repo, folder.workspace)
        cloned = ", sharing the disk space of the original" if copy.cloned else ""
        size = f"{copy.bytes / 1e6:,.1f} MB" if copy.bytes >= 1e5 else count(copy.bytes, "byte")
        say(f"copied {count(len(copy.sources), 'file')}, {size}{cloned}")
        self._listing = copy.listing
        return Place(str(folder.workspace))

    def ready(self) -> None:
        settle(self._listing)

    def set_up(self) -> None:
        assert self.before is not None
        here = scan(self._folder.workspace).files
        fresh = [path for path in here if path not in self.before.entries and path not in self.before.ignored]
        self._prepared = self._rules.ignored(fresh) | (self.before.ignored & here.keys())
        self._copier.copy(self._folder.workspace, self._folder.setup, only=self._prepared)

    def started(self) -> None:
        pass

    def result(self) -> tuple[Baseline, Result]:
        assert self.before is not None
        result = self._snapshot.result(self.before, scan(self._folder.workspace))
        result.findings += head_moved(self._order)
        return self.before, result

    def lay_out(self, before: Baseline, after: Result) -> Place:
        order, folder = self._order, self._folder
        if not order.keep:
            remove(folder.workspace)  # room for its successor
        source = Path(order.root)
        if self._prepared is not None:
            source, before = folder.setup, msgspec.structs.replace(before, ignored=self._prepared)
        verify.lay_out(source, folder.verify, self._copier, before, after, self._store)
        if order.repository:
            repository.detach(order.git, order.repository, folder.verify)
        return Place(str(folder.verify))
