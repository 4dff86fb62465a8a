"""The disposable workspace: a copy of the user's tree.

The copy shares nothing with the original: no hard links, links stay links, sockets, pipes and devices are left out and
said so, set-id bits are dropped, extended attributes too where blocks are not cloned by macOS. Blocks are shared where
the file system can (`cloning`). `.git` is copied like any folder.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import msgspec

from .cloning import NEW, Clone, of_platform
from .listing import Listing, Stamp, kind_of, stamp_of

BLOCK = 1 << 24
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCKS = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock")
"""Of a git that runs on the user's tree at this moment; in the copy nobody would ever remove them."""


class Copy(msgspec.Struct):
    """A copy that was made: its files as they are now, and the originals as they were when they were read."""

    listing: Listing
    sources: dict[str, Stamp]
    bytes: int = 0
    cloned: bool = False
    why_copied: str = ""
    """Why blocks are not shared, where that was tried."""


class Copier:
    """Copies trees; remembers which way of copying the file systems at hand allow."""

    def __init__(self, *, skip: frozenset[tuple[int, int]] = frozenset(), clone: Clone | None = None) -> None:
        self.skip = skip
        """(device, inode) of folders that are never entered: skep's own state."""
        self._clone = clone or of_platform()
        self.why_copied = ""

    def copy(self, source: Path, target: Path, *, only: frozenset[str] | None = None, in_git: bool = False) -> Copy:
        """The tree at `source` stands at `target`, which must not exist. Raises OSError when there is no room.

        `only` keeps just these files and what belongs to `.git`, and leaves folders writable. A file that goes away
        meanwhile is left out. `in_git` says that the source is a git dir.
        """
        os.mkdir(target, 0o700)
        walk = _Walk(self, source, target, only)
        walk.go(in_git)
        walk.made.why_copied = self.why_copied
        return walk.made

    def copy_one(self, folder: int, name: str, target: str, info: os.stat_result) -> bool:
        """One file or link of an open folder. Returns whether its blocks are shared. Raises FileNotFoundError when it
        is something else now.
        """
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=folder), target)
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)
            return False
        reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(reader).st_mode):
                raise FileNotFoundError(name)
            cloned = self._cloned(reader, target) if info.st_size else -1
            writer = cloned if cloned >= 0 else os.open(target, os.O_WRONLY | NEW, 0o600)
            try:
                if info.st_size and cloned < 0:
                    _transfer(reader, writer, info)
                os.fchmod(writer, stat.S_IMODE(info.st_mode) & 0o777)
                os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
            finally:
                os.close(writer)
        finally:
            os.close(reader)
        return cloned >= 0

    def _cloned(self, reader: int, target: str) -> int:
        """A descriptor of the clone, negative when there is none. What failed for one file is not tried for another,
        unless it was about that file.
        """
        if not self.why_copied:
            try:
                return self._clone(reader, target)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EEXIST):
                    raise
                if error.errno != errno.EPERM:
                    self.why_copied = error.strerror or "no clones"
        return -1


class _Walk:
    """One copy. A git that works on the original meanwhile (`gc` runs in the background after a commit) moves loose
    objects into packs and loose references into `packed-refs`; so these two are copied last, packs until no new one
    appears.

    A worker of somewhere else may write to the original at this moment and put a link in the place of a folder, so
    every folder is opened from the top down without following one.
    """

    def __init__(self, copier: Copier, source: Path, target: Path, only: frozenset[str] | None) -> None:
        self.made = Copy(Listing(), {})
        self._copier = copier
        self._source, self._target, self._only = str(source), str(target), only
        self._folders: list[tuple[str, os.stat_result]] = []
        self._pending: list[tuple[str, bool]] = []
        self._packs: list[str] = []
        self._packed_refs: list[str] = []

    def go(self, in_git: bool) -> None:
        self._top = os.open(self._source, _FOLDER & ~os.O_NOFOLLOW)
        try:
            self._all(in_git)
        finally:
            os.close(self._top)

    def _all(self, in_git: bool) -> None:
        self._pending.append(("", in_git))
        while self._pending:
            self._folder(*self._pending.pop())
        for path in self._packs:
            while self._folder(path, True):
                pass
        for path in self._packed_refs:
            folder = self._opened(path.rpartition("/")[0])
            if folder is not None:
                self._file(folder, path, in_git=True)
                os.close(folder)
        for relative, info in reversed(self._folders):
            where = f"{self._target}/{relative}"
            os.chmod(where, stat.S_IMODE(info.st_mode) & 0o777 | (0o700 if self._only is not None else 0))
            os.utime(where, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _folder(self, relative: str, in_git: bool) -> int:
        """How many files were copied that were not there before; folders are put off."""
        here = self._opened(relative)
        if here is None:
            return 0
        try:
            return self._entries(here, relative, in_git)
        finally:
            os.close(here)

    def _opened(self, relative: str) -> int | None:
        """A folder of the original; None when there is none any more, or one that cannot be read, which is told."""
        here = os.dup(self._top)
        for part in relative.split("/") if relative else ():
            above = here
            try:
                here = os.open(part, _FOLDER, dir_fd=above)
            except PermissionError:
                self.made.listing.report("skipped", relative, "a folder you cannot read")
                return None
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
                return None
            finally:
                os.close(above)
        return here

    def _entries(self, here: int, relative: str, in_git: bool) -> int:
        info, names = os.fstat(here), sorted(os.listdir(here))
        where = f"{self._target}/{relative}"
        if relative and not os.path.lexists(where):
            os.mkdir(where, 0o700)
        self._folders.append((relative, info))
        if not in_git:
            self.made.listing.folders[relative] = stat.S_IMODE(info.st_mode)
        return sum(self._file(here, f"{relative}/{name}" if relative else name, in_git=in_git) for name in names)

    def _file(self, folder: int, path: str, *, in_git: bool) -> bool:
        """Whether a file was copied. Folders, and what git may still move things into, are put off."""
        parent, _, name = path.rpartition("/")
        git = in_git or name == ".git"
        listing = self.made.listing
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name == ".git" and parent and not in_git:
                listing.nested.append(parent)
            if stat.S_ISDIR(info.st_mode):
                self._put_off(path, info, git)
            elif not (stat.S_ISLNK(info.st_mode) or stat.S_ISREG(info.st_mode)):
                listing.report("skipped", path, f"a {kind_of(info.st_mode)}, which is not copied")
            elif git and name == "packed-refs" and path not in self._packed_refs:
                self._packed_refs.append(path)
            elif not self._left_out(path, name, git):
                return self._copy(folder, path, info, git)
        except FileNotFoundError:
            pass
        except PermissionError:
            listing.report("skipped", path, "a file you cannot read")
        return False

    def _put_off(self, path: str, info: os.stat_result, git: bool) -> None:
        if (info.st_dev, info.st_ino) in self._copier.skip:
            self.made.listing.report("skipped", path, "skep's own state")
        elif git and f"/{path}".endswith("/objects/pack"):
            self._packs.append(path)
        else:
            self._pending.append((path, git))

    def _left_out(self, path: str, name: str, git: bool) -> bool:
        if git:
            return name in _LOCKS
        return self._only is not None and path not in self._only

    def _copy(self, folder: int, path: str, info: os.stat_result, git: bool) -> bool:
        there = f"{self._target}/{path}"
        if git and os.path.lexists(there):
            return False  # a pack that was there the last time
        self.made.cloned |= self._copier.copy_one(folder, path.rpartition("/")[2], there, info)
        self.made.bytes += info.st_size
        if not git:
            self.made.sources[path] = stamp_of(info)
            self.made.listing.files[path] = stamp_of(os.lstat(there))
        return True


def _transfer(reader: int, writer: int, info: os.stat_result) -> None:
    """The content, holes left holes when the original has some."""
    if info.st_blocks * 512 >= info.st_size:
        while _some(reader, writer, BLOCK):
            pass
        return
    at = 0
    while True:
        try:
            start = os.lseek(reader, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                break
            raise
        at = os.lseek(reader, start, os.SEEK_HOLE)
        os.lseek(reader, start, os.SEEK_SET)
        os.lseek(writer, start, os.SEEK_SET)
        left = at - start
        while left > 0 and (moved := _some(reader, writer, min(left, BLOCK))):
            left -= moved
    os.ftruncate(writer, os.fstat(reader).st_size)


def _some(reader: int, writer: int, length: int) -> int:
    try:
        return os.copy_file_range(reader, writer, length)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
    block = os.read(reader, min(length, 1 << 20))
    view = memoryview(block)
    while view:
        view = view[os.write(writer, view) :]
    return len(block)


def settle(listing: Listing) -> None:
    """From now on a change of any listed file gets another ctime than it has: the clock of the kernel has moved on."""
    newest = max((stamp.ctime_ns for stamp in listing.files.values()), default=0)
    clock = getattr(time, "CLOCK_REALTIME_COARSE", None) or 5  # Linux: what stamps files; Python names it nowhere
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        try:
            coarse = time.clock_gettime_ns(clock)
        except OSError:
            coarse = time.time_ns() - 20_000_000
        if coarse > newest:
            return
        time.sleep(0.001)
