"""Descriptors to hand over, and paths looked at by descriptors, link by link."""

from __future__ import annotations

import fcntl
import os
import stat

from .errors import BackendUnavailable


def check_destination(root: str, path: str) -> None:
    """Raises BackendUnavailable when a link stands on the way from a writable root to a mount point below it.

    bwrap would follow it while it sets up, outside of the boundary. A worker of an earlier run may have put it there.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    here = -1
    try:
        here = os.open(root, flags)
        for name in os.path.relpath(path, root).split("/"):
            deeper = os.open(name, flags, dir_fd=here)
            os.close(here)
            here = deeper
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise BackendUnavailable(
                    f"{path} goes through a link below the writable {root}",
                    fix=f"remove the link {name}",
                    check="mount",
                )
    except (FileNotFoundError, NotADirectoryError):
        raise BackendUnavailable(f"{path} was there a moment ago and is gone", fix="try again", check="mount") from None
    finally:
        if here >= 0:
            os.close(here)


def high(fd: int, opened: list[int]) -> int:
    """A copy above 2: the guardian lays the worker's three there, and a caller may have had them closed."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    opened.append(copy)
    return copy


def pipe(opened: list[int]) -> tuple[int, int]:
    read, write = os.pipe()
    try:
        return high(read, opened), high(write, opened)
    finally:
        os.close(read)
        os.close(write)


def memfd(name: str, content: bytes, opened: list[int]) -> int:
    low = os.memfd_create(f"skep-{name}", os.MFD_CLOEXEC)
    try:
        fd = high(low, opened)
    finally:
        os.close(low)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
