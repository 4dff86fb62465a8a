"""The disposable workspace: a copy of the user's tree.

The copy shares nothing with the original: no hard links, links stay links, sockets, pipes and devices are left out and
said so, set-id bits and extended attributes are dropped. Blocks are shared where the file system can (FICLONE). `.git`
is copied like any folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

import msgspec

from .listing import Listing, Stamp, kind_of, stamp_of

FICLONE = 0x40049409
BLOCK = 1 << 24
_LOCKS = ("index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock")
"""Of a git that runs on the user's tree at this moment; in the copy nobody would ever remove them."""


class Copy(msgspec.Struct):
    """A copy that was made: its files as they are now, and the originals as they were when they were read."""

    listing: Listing
    sources: dict[str, Stamp]
    bytes: int = 0
    cloned: bool = False


class Copier:
    """Copies trees; remembers which way of copying the file systems at hand allow."""

    def __init__(self, *, skip: frozenset[tuple[int, int]] = frozenset()) -> None:
        self._skip = skip
        """(device, inode) of folders that are never entered: skep's own state."""
        self._may_clone = True

    def copy(self, source: Path, target: Path, *, only: frozenset[str] | None = None) -> Copy:
        """The tree at `source` stands at `target`, which must not exist. Raises OSError when there is no room.

        `only` keeps just these files and what belongs to `.git`, and leaves folders writable. A file that goes away
        meanwhile is left out.
        """
        made = Copy(Listing(), {})
        folders: list[tuple[str, os.stat_result]] = []
        pending = [("", False)]
        while pending:
            relative, in_git = pending.pop()
            here = source / relative if relative else source
            info = os.stat(here, follow_symlinks=not relative)
            if not stat.S_ISDIR(info.st_mode):
                continue
            os.mkdir(target / relative if relative else target, 0o700)
            folders.append((relative, info))
            try:
                entries = sorted(os.scandir(here), key=lambda entry: entry.name)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT):
                    raise
                made.listing.report("skipped", relative, "a folder you cannot read")
                continue
            if not in_git:
                made.listing.folders[relative] = stat.S_IMODE(info.st_mode)
            for entry in entries:
                self._entry(made, entry, relative, in_git, pending, target, only)
        for relative, info in reversed(folders):
            where = target / relative if relative else target
            os.chmod(where, stat.S_IMODE(info.st_mode) & 0o777 | (0o700 if only is not None else 0))
            os.utime(where, ns=(info.st_atime_ns, info.st_mtime_ns))
        return made

    def _entry(
        self,
        made: Copy,
        entry: os.DirEntry[str],
        parent: str,
        in_git: bool,
        pending: list[tuple[str, bool]],
        target: Path,
        only: frozenset[str] | None,
    ) -> None:
        path = f"{parent}/{entry.name}" if parent else entry.name
        git = in_git or entry.name == ".git"
        try:
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(info.st_mode):
                if (info.st_dev, info.st_ino) in self._skip:
                    made.listing.report("skipped", path, "skep's own state")
                    return
                pending.append((path, git))
            elif stat.S_ISLNK(info.st_mode) or stat.S_ISREG(info.st_mode):
                if (only is not None and not git and path not in only) or (git and entry.name in _LOCKS):
                    return
                there = target / path
                made.bytes += self._copy_one(entry.path, there, info, made)
                if not git:
                    made.sources[path] = stamp_of(info)
                    made.listing.files[path] = stamp_of(os.lstat(there))
            else:
                made.listing.report("skipped", path, f"a {kind_of(info.st_mode)}, which is not copied")
        except FileNotFoundError:
            return
        except PermissionError:
            made.listing.report("skipped", path, "a file you cannot read")
            return
        if entry.name == ".git" and parent and not in_git:
            made.listing.nested.append(parent)

    def _copy_one(self, source: str, target: Path, info: os.stat_result, made: Copy) -> int:
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(source), target)
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)
            return 0
        reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(reader).st_mode):
                raise FileNotFoundError(source)
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if info.st_size and not self._clone(reader, writer, made):
                    _transfer(reader, writer, info)
                os.fchmod(writer, stat.S_IMODE(info.st_mode) & 0o777)
                os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
            finally:
                os.close(writer)
        finally:
            os.close(reader)
        return info.st_size

    def _clone(self, reader: int, writer: int, made: Copy) -> bool:
        if self._may_clone:
            try:
                fcntl.ioctl(writer, FICLONE, reader)
                made.cloned = True
                return True
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._may_clone = False
        return False


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
