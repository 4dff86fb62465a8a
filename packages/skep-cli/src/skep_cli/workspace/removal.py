"""Removing what a worker left, whatever it is."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


CHFLAGS = "/usr/bin/chflags"
"""Of macOS."""


def open_up(name: str, parent: str | int) -> None:
    """The folder is readable, writable and searchable for its owner; nothing happens to what a link points to."""
    parent_fd = parent if isinstance(parent, int) else os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if hasattr(os, "O_PATH"):
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
            try:
                if not stat.S_ISLNK(os.fstat(fd).st_mode):
                    os.chmod(f"/proc/self/fd/{fd}", 0o700)
            finally:
                os.close(fd)
        else:
            os.chmod(name, 0o700, dir_fd=parent_fd, follow_symlinks=False)
    finally:
        if parent_fd != parent:
            os.close(parent_fd)


def remove(path: Path) -> None:
    """Nothing is left at `path`, whatever is in it: closed folders, trees deeper than a path can be long, odd names,
    files marked immutable where a user can do that.

    Raises OSError for what another user owns. Folders are moved up to the top as they are met, so no path ever grows.
    """
    try:
        _remove(path)
    except PermissionError:
        if not os.access(CHFLAGS, os.X_OK):
            raise
        from subprocess import DEVNULL, run

        run([CHFLAGS, "-R", "-P", "0", str(path)], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False)
        _remove(path)


def _remove(path: Path) -> None:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        os.unlink(path)
        return
    open_up(path.name, str(path.parent))
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        pending, serial = _clear(top, top, 0)
        while pending:
            name = pending.pop()
            open_up(name, top)
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
            try:
                moved, serial = _clear(folder, top, serial)
            finally:
                os.close(folder)
            pending += moved
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _clear(folder: int, top: int, serial: int) -> tuple[list[str], int]:
    """The folder is empty: files are gone, folders moved to the top under new names, which are returned."""
    moved: list[str] = []
    for name in os.listdir(folder):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        open_up(name, folder)  # a folder that moves must be writable: its `..` changes
        while True:
            serial += 1
            fresh = f".skep-gone-{serial}"
            try:
                os.stat(fresh, dir_fd=top, follow_symlinks=False)
            except FileNotFoundError:
                break
        os.rename(name, fresh, src_dir_fd=folder, dst_dir_fd=top)
        moved.append(fresh)
    return moved, serial
