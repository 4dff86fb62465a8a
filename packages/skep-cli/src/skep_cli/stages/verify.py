"""The independent verification: the patch on a clean workspace, the operator's command, and what it came to.

The workspace is made anew: what git knows comes from the result tree, what it ignores (`.venv`, `node_modules`, caches)
from the user's own tree, `.git` too. Nothing of the worker's workspace is in it but what the patch says.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from skep_policy.report import LOST

from skep_cli.errors import SkepError
from skep_cli.evidence.record import Verification
from skep_cli.git.objects import Store
from skep_cli.git.trees import LINK, Entry
from skep_cli.workspace.copier import Copier
from skep_cli.workspace.listing import Stamp
from skep_cli.workspace.removal import remove
from skep_cli.workspace.snapshot import Baseline, Result

from .ended import limit_told
from .order import Outcome

NOT_EXECUTABLE, NOT_FOUND = 126, 127


def lay_out(source: Path, target: Path, copier: Copier, before: Baseline, after: Result, store: Store) -> None:
    """The result stands at `target`, on top of what was ignored of `source`. Raises OSError, SkepError."""
    copier.copy(source, target, only=before.ignored)
    _drop_empty(target, before, after.entries)
    unchanged = {
        path: before.stamps[path] for path, entry in after.entries.items() if before.entries.get(path) == entry
    }
    write_all(target, store, after.entries, unchanged)
    for folder, mode in before.folders.items():
        there = target / folder
        if there.is_dir() and not there.is_symlink():
            there.chmod(mode & 0o777)


def write_all(target: Path, store: Store, entries: Mapping[str, Entry], stamps: Mapping[str, Stamp]) -> None:
    """The entries are files below `target`, with the modes and times of their stamps. Raises OSError, SkepError."""
    writer = _Writer(target, stamps)
    paths: dict[str, list[str]] = {}
    for path, entry in entries.items():
        paths.setdefault(entry.oid, []).append(path)
    for oid, _, blocks in store.read(paths):
        names = paths[oid]
        if len(names) > 1 or entries[names[0]].mode == LINK:
            content = b"".join(blocks)
            for path in names:
                writer.write(path, entries[path], iter((content,)))
        else:
            writer.write(names[0], entries[names[0]], blocks)


def _drop_empty(target: Path, before: Baseline, after: Mapping[str, Entry]) -> None:
    """Folders whose files the patch takes away go with them."""
    had, has = _folders(before.entries), _folders(after)
    for folder in sorted(had - has, key=len, reverse=True):
        try:
            os.rmdir(target / folder)
        except OSError:
            pass  # it holds ignored files, or is not there


def _folders(entries: Mapping[str, Entry]) -> set[str]:
    found: set[str] = set()
    for path in entries:
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


class _Writer:
    """Writes files below a folder and never through a link in it."""

    def __init__(self, root: Path, stamps: Mapping[str, Stamp]) -> None:
        self._root = str(root)
        self._stamps = stamps
        self._folders: set[str] = {""}
        self._now = time.time_ns()

    def write(self, path: str, entry: Entry, blocks: Iterable[bytes]) -> None:
        self._folder(path.rpartition("/")[0])
        there = f"{self._root}/{path}"
        if os.path.lexists(there):
            remove(Path(there))
        stamp = self._stamps.get(path)
        when = stamp.mtime_ns if stamp else self._now
        if entry.mode == LINK:
            os.symlink(b"".join(blocks), os.fsencode(there))
            os.utime(there, ns=(when, when), follow_symlinks=False)
            return
        fd = os.open(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for block in blocks:
                view = memoryview(block)
                while view:
                    view = view[os.write(fd, view) :]
            mode = stat.S_IMODE(stamp.mode) & 0o777 if stamp else entry.mode & 0o777
            os.fchmod(fd, mode)
            os.utime(fd, ns=(when, when))
        finally:
            os.close(fd)

    def _folder(self, folder: str) -> None:
        if folder in self._folders:
            return
        parent = folder.rpartition("/")[0]
        self._folder(parent)
        there = f"{self._root}/{folder}"
        try:
            if not stat.S_ISDIR(os.lstat(there).st_mode):
                os.unlink(there)
                os.mkdir(there, 0o755)
        except FileNotFoundError:
            os.mkdir(there, 0o755)
        self._folders.add(folder)


def judged(command: str, program: str, done: Outcome) -> Verification:
    """The outcome of a verification that ran. Status 126 and 127, of a shell too, say that a tool is missing, not that
    the patch is bad.
    """
    if (
        done.exec_error is not None
        or done.lost
        or (done.exit_code in (NOT_EXECUTABLE, NOT_FOUND) and not done.timed_out)
    ):
        outcome = "unavailable"
    else:
        outcome = "passed" if done.exit_code == 0 and not done.timed_out else "failed"
    return Verification(outcome, command, done.exit_code, _why(program, done))


def _why(program: str, done: Outcome) -> str:
    if done.lost:
        return LOST
    if done.limit:
        return limit_told(done.limit)
    if done.exec_error is not None:
        return f"{program}: {os.strerror(done.exec_error)}"
    problem = {NOT_FOUND: "was not found", NOT_EXECUTABLE: "cannot be executed"}.get(done.exit_code)
    return f"exit status {done.exit_code}: a program it calls {problem}" if problem else ""


def explain(error: Exception) -> str:
    """Why a verification could not be tried, in a line."""
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "no room for its workspace"
        return f"{error.filename or 'workspace'}: {error.strerror or error}"
    return error.message if isinstance(error, SkepError) else str(error)
