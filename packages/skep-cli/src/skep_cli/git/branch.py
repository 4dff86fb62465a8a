"""The git side of an approval: commits made of a run's trees, brought into the user's repository as one pack and one
reference.

Nothing is checked out, no index is touched, no hook runs. The commits are built in the run's own git dir. Where the
repository stores other bytes than it checks out (`kept` of the snapshot), an untouched file keeps what is stored, a
changed one is converted when it is known how (`conversion`), and is told otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from skep_cli.errors import SkepError
from skep_cli.evidence.record import Run
from skep_cli.evidence.state import RunFolder

from .conversion import to_stored
from .hostgit import Git, GitFailed, owner
from .objects import Store, bytes_source
from .repository import Repository
from .trees import Change, Entries, Entry, apply, build, changes, object_id

MAX_CONVERTED = 64 << 20
"""Bytes of a file that is converted; it is held in memory."""


class Kept(msgspec.Struct):
    """`git/skep.json`."""

    kept: list[str]
    foreign: list[str]


class Branch(msgspec.Struct):
    """Commits that are ready in the run's git dir."""

    name: str
    commit: str
    objects: list[str]
    left_out: list[str]
    """Changed paths that belong to other repositories: submodules and nested ones."""
    raw: list[str]
    """Changed paths that go through a filter in this repository, and stand on the branch as they are on disk."""
    uncommitted: bool
    """Whether a first commit holds what the user had not committed."""


class Identity(msgspec.Struct, frozen=True):
    name: str
    email: str


def reference(run: str) -> str:
    return f"refs/heads/skep/{run}"


class Builder:
    """Builds the branch of one run."""

    def __init__(self, run: Run, folder: RunFolder, program: str, kept: Kept) -> None:
        assert run.trees is not None
        self._run = run
        self._trees = run.trees
        self._git = Git(program, folder.git)
        self._store = Store(self._git, run.trees.object_format)
        self._kept = frozenset(kept.kept)
        self._foreign = frozenset(kept.foreign)
        self._raw: list[str] = []

    def build(self, identity: Identity, message: str) -> Branch:
        """The commits are in the run's git dir. Raises SkepError when objects of the repository are gone, OSError."""
        trees = self._trees
        assert trees.result is not None
        head: Entries = self._store.tree(trees.head) if trees.head else {}
        before, after = self._store.tree(trees.baseline), self._store.tree(trees.result)
        uncommitted = [c for c in changes(head, before) if c.path not in self._kept and not self._is_foreign(c.path)]
        work = changes(before, after)
        mine = [change for change in work if not self._is_foreign(change.path)]
        base = apply(head, uncommitted)
        final = apply(base, self._as_stored(mine, head, before))
        objects: dict[str, None] = {}
        parent = trees.head
        if uncommitted:
            parent = self._commit(
                base, parent, identity, f"baseline: uncommitted work\n\nSkep-Run: {self._run.id}\n", objects
            )
        commit = self._commit(final, parent, identity, message, objects)
        for oid in (change.new.oid for change in (*uncommitted, *changes(base, final)) if change.new):
            objects[oid] = None
        left_out = [change.path for change in work if self._is_foreign(change.path)]
        return Branch(f"skep/{self._run.id}", commit, list(objects), left_out, self._raw, bool(uncommitted))

    def _is_foreign(self, path: str) -> bool:
        while path:
            if path in self._foreign:
                return True
            path = path.rpartition("/")[0]
        return False

    def _as_stored(self, work: Sequence[Change], head: Entries, before: Entries) -> list[Change]:
        """The changes with the bytes the repository would store."""
        stored = {before[path].oid: head[path].oid for path in self._kept if path in before and path in head}
        result: list[Change] = []
        for change in work:
            if change.new is None or (change.new.oid not in stored and change.path not in self._kept):
                result.append(change)
                continue
            known = stored.get(change.new.oid)
            oid = known or self._converted(change, head[change.path].oid)
            mode = change.new.mode
            if change.path in self._kept and change.old and change.old.mode == mode:
                mode = head[change.path].mode
            result.append(Change(change.path, change.old, Entry(mode, oid)))
        return result

    def _converted(self, change: Change, stored: str) -> str:
        """The blob a changed file is stored as, when it is known what lies between; else as it is, and told."""
        assert change.new is not None
        if change.old is not None and change.old.oid == stored:
            return change.new.oid  # only its mode is kept otherwise
        if change.old is not None:
            try:
                was, on_disk = self._store.content(stored), self._store.content(change.old.oid)
                convert = to_stored(on_disk, was) if len(on_disk) <= MAX_CONVERTED else None
                if convert is not None:
                    content = convert(self._store.content(change.new.oid))
                    oid = object_id("blob", content, self._trees.object_format)
                    self._store.add([bytes_source(oid, "blob", content)])
                    return oid
            except (GitFailed, UnicodeError):
                pass  # the stored form is not here (a partial clone), or the worker wrote another encoding
        self._raw.append(change.path)
        return change.new.oid

    def _commit(
        self,
        entries: Mapping[str, Entry],
        parent: str | None,
        identity: Identity,
        message: str,
        objects: dict[str, None],
    ) -> str:
        try:
            built = build(entries, self._trees.object_format)
        except ValueError as error:
            raise SkepError(f"the patch does not fit the commit it started from: {error}") from None
        self._store.add(bytes_source(oid, "tree", content) for oid, content in built.objects.items())
        settings = {"user.name": identity.name, "user.email": identity.email}
        words = ["commit-tree", built.root, *(("-p", parent) if parent else ()), "-F", "-"]
        commit = self._git.run(*words, stdin=message.encode(errors="replace"), settings=settings).decode().strip()
        objects.update(dict.fromkeys((*built.objects, commit)))
        return commit


def existing(program: str, repository: Repository, run: str) -> str | None:
    """The commit the run's branch is at, if it is there. Raises SkepError when it never can be."""
    git = Git(program, repository.git_dir)
    if git.text("rev-parse", "--verify", "--quiet", "refs/heads/skep", ok=(0, 1)):
        raise SkepError(
            f"{repository.root} has a branch named skep, and so git can keep none named skep/{run}: rename it"
            " (git branch -m skep other), then approve again"
        )
    return git.text("rev-parse", "--verify", "--quiet", reference(run), ok=(0, 1)) or None


def bring(branch: Branch, folder: RunFolder, program: str, repository: Repository, run: Run) -> None:
    """The branch is in the repository, and what was made there is its owner's: for root, git writes as the owner, who
    can lay out that folder as they like. Raises SkepError when git refuses, OSError when there is no room.
    """
    account = owner(repository.root, repository.git_dir, repository.common_dir, repository.objects)
    own = Git(program, folder.git)
    theirs = Git(program, folder.git, objects=repository.objects)
    missing = Store(theirs, repository.object_format).missing(branch.objects)
    if missing:
        pack = folder.git / "approved.pack"
        out = os.open(pack, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            wanted = "".join(f"{oid}\n" for oid in sorted(missing)).encode()
            own.run("pack-objects", "--stdout", "-q", stdin=wanted, stdout=out)
            os.lseek(out, 0, os.SEEK_SET)
            writer = Git(program, repository.git_dir, objects=repository.objects, account=account)
            writer.run("index-pack", "--stdin", "--fsck-objects", stdin=out)
        finally:
            os.close(out)
            pack.unlink(missing_ok=True)
    zero = "0" * len(branch.commit)
    git = Git(program, repository.git_dir, account=account)
    git.run("update-ref", "-m", f"skep approve {run.id}", reference(run.id), branch.commit, zero)
