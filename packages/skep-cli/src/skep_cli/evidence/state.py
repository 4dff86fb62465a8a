"""The state folder: where runs live, what they are called, and which of them is alive.

    $XDG_STATE_HOME/skep/runs/ID/     one run; `mkdir` decides who gets an id
        lock                          flock'ed by the living run, or by whoever adds a verdict; absent otherwise
        workspace/ verify/ setup/ …   scratch of a living run; what a dead one left is removed by the next

Everything is 0700 and the user's own. An operating system's refusal becomes one line here.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from skep_policy.errors import PolicyError
from skep_policy.facts import Facts

from skep_cli.errors import CannotRun, SkepError, StateError, UsageError
from skep_cli.workspace.removal import remove

from .lock import Lock

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_LENGTH = 9
_ID = re.compile(f"[{_DIGITS}]{{{_ID_LENGTH}}}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCRATCH = ("workspace", "verify", "rules", "agent", "setup")


def run_id(milliseconds: int) -> str:
    """Short, sorts by time, and is a word in every shell, file system and git."""
    digits: list[str] = []
    for _ in range(_ID_LENGTH):
        milliseconds, digit = divmod(milliseconds, 32)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def gather() -> Facts:
    """The facts of this process. Raises CannotRun for a home or folder that is not there."""
    try:
        return Facts.gather()
    except PolicyError as error:
        raise CannotRun(str(error)) from None


@contextmanager
def guarded(path: Path | str) -> Generator[None]:
    """What the operating system refuses below the state folder is a StateError of one line."""
    try:
        yield
    except OSError as error:
        raise trouble(error, path) from error


def trouble(error: OSError, path: Path | str) -> StateError:
    what = error.strerror or str(error)
    where = error.filename if isinstance(error.filename, str) else str(path)
    if error.errno in _FULL:
        return StateError(
            f"no room in the state folder {path} ({what}): free some, or set XDG_STATE_HOME to another folder"
        )
    if error.errno == errno.ENAMETOOLONG:
        return StateError(f"cannot use {where}: {what}")
    return StateError(
        f"cannot use the state folder {path} ({where}: {what}): make it yours, or set XDG_STATE_HOME to another"
    )


MAX_UNLOCKED = 60_000
"""Milliseconds. Between the making of a run's folder and its lock lies next to nothing."""


class RunFolder:
    """One run's folder. Names only; nothing is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name
        self.record = path / "run.json"
        self.log = path / "events.jsonl"
        self.head = path / "events.head"
        self.git = path / "git"
        self.patch = path / "patch.diff"
        self.results = path / "results"
        self.workspace = path / "workspace"
        self.verify = path / "verify"
        self.rules = path / "rules"
        self.agent = path / "agent"
        self.setup = path / "setup"
        self.lock = Lock(path / "lock")

    def alive(self) -> bool:
        """Whether a process works on it at this moment."""
        probe = Lock(self.path / "lock")
        try:
            taken = probe.take(wait=False, create=False)
        except OSError:
            return False
        if taken:
            probe.release(keep=True)
        return not taken and (self.path / "lock").exists()


class Runs:
    """All runs below one state folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "runs"

    def create(self) -> RunFolder:
        """A new folder, ours alone, its lock held. Raises StateError."""
        with guarded(self.root):
            self._prepare()
            stamp = time.time_ns() // 1_000_000
            self._clear_unlocked(stamp)
            # Locked by a name nobody looks at, and then put in the place of an empty one: a folder that has a lock and
            # is not locked looks like one whose skep was killed.
            locked = self.folder / f".{run_id(stamp)}-{os.getpid()}"
            locked.mkdir(mode=0o700)
            lock = Lock(locked / "lock")
            lock.take()
            while True:
                folder = RunFolder(self.folder / run_id(stamp))
                try:
                    folder.path.mkdir(mode=0o700)
                except FileExistsError:
                    stamp += 1
                    continue
                os.rename(locked, folder.path)
                folder.lock.take_over(lock)
                return folder

    def discard(self, run: RunFolder) -> None:
        """Nothing is left of the run. One that is killed meanwhile leaves what nobody takes for a run, and a later one
        clears.
        """
        hidden = self.folder / f".{run.id}-{os.getpid()}"
        try:
            os.rename(run.path, hidden)
        except FileNotFoundError:
            return
        remove(hidden)

    def _clear_unlocked(self, now: int) -> None:
        """What is left of a skep that was killed at just that moment is gone. `now` is in milliseconds."""
        for name in os.listdir(self.folder):
            path = self.folder / name
            hidden = name.startswith(".")
            if hidden or _ID.fullmatch(name):
                try:
                    if now - path.stat().st_mtime_ns // 1_000_000 > MAX_UNLOCKED:
                        remove(path) if hidden else path.rmdir()  # of those with an id, an empty one
                except OSError:
                    continue  # somebody else does the same

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (self.root, self.folder):
            info = path.stat()
            if info.st_uid != os.geteuid():
                raise StateError(f"{path} belongs to another user: set XDG_STATE_HOME to a folder of your own")
            if stat.S_IMODE(info.st_mode) & 0o077:
                path.chmod(0o700)

    def all(self) -> list[RunFolder]:
        """Every run, newest first. Raises StateError when the folder is there and cannot be read."""
        with guarded(self.root):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return []
        return [RunFolder(self.folder / name) for name in sorted(names, reverse=True) if _ID.fullmatch(name)]

    def find(self, wanted: str) -> RunFolder:
        """The run with that id, the one whose id begins so, or the `last`. Raises UsageError when it is not one run."""
        runs = self.all()
        if not runs:
            raise UsageError(f"no run {wanted!r}: there are none in {self.folder} yet; `skep run REPO TASK` makes one")
        if wanted == "last":
            return runs[0]
        found = [run for run in runs if wanted and run.id.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(run.id for run in found[:5])
            raise UsageError(
                f"{wanted!r} begins {len(found)} runs ({names}{', …' if len(found) > 5 else ''}): write more of it"
            )
        raise UsageError(f"no run {wanted!r} in {self.folder}: `skep runs` lists them")

    def dead(self) -> Iterator[RunFolder]:
        """Runs that ended without an end, each with its lock held by us while it is looked at."""
        for run in self.all():
            try:
                taken = run.lock.take(wait=False, create=False)
            except OSError:
                continue
            if taken:
                try:
                    yield run
                finally:
                    run.lock.release()


def replace(path: Path, content: bytes) -> None:
    """The file holds `content`, whole, on disk, whenever anything may stop."""
    fresh = path.with_name(path.name + ".new")
    try:
        write_new(fresh, content)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: Path, limit: int) -> bytes:
    """A regular file's content, no link followed. Raises SkepError when it is larger than `limit` bytes or no regular
    file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SkepError(f"{path} is no regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise SkepError(f"{path} is larger than {limit:,} bytes")
    return content
