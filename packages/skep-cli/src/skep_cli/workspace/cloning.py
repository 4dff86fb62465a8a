"""One file made as a clone of another: blocks are shared until one of the two is written. Each system has its call.

On macOS (`fclonefileat`, APFS) a clone has the extended attributes of the original, quarantine among them, and no
access control list.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable

FICLONE = 0x40049409
CLONE_NOFOLLOW, CLONE_NOOWNERCOPY = 1, 2
AT_FDCWD = -2
"""sys/clonefile.h and fcntl.h of macOS."""

KEPT_FLAGS = 0x00060006
"""sys/stat.h of macOS: immutable and append-only, set by the user or by root. A clone has them too, and could neither
be written nor removed."""

NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Call = Callable[[int, bytes], int]
"""Clone the open file to a path that does not exist; returns 0 or an errno."""

Clone = Callable[[int, str], int]
"""A descriptor of a new file at a path, a clone of the open file. Raises OSError; nothing stands at the path then."""


def by_ioctl(reader: int, target: str) -> int:
    """On Linux."""
    writer = os.open(target, os.O_WRONLY | NEW, 0o600)
    try:
        fcntl.ioctl(writer, FICLONE, reader)
    except BaseException:
        os.close(writer)
        os.unlink(target)
        raise
    return writer


def by_call(call: Call) -> Clone:
    """On macOS, whose call makes the file."""

    def clone(reader: int, target: str) -> int:
        if getattr(os.fstat(reader), "st_flags", 0) & KEPT_FLAGS:
            raise OSError(errno.EPERM, "the original is marked immutable", target)
        if number := call(reader, os.fsencode(target)):
            raise OSError(number, os.strerror(number), target)
        # The mode is the original's, so it may not be writable.
        return os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    return clone


def fclonefileat(reader: int, target: bytes) -> int:
    """The system's own call."""
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    failed = system.fclonefileat(reader, AT_FDCWD, target, ctypes.c_uint32(CLONE_NOFOLLOW | CLONE_NOOWNERCOPY))
    return ctypes.get_errno() if failed else 0


def of_platform(platform: str = sys.platform) -> Clone:
    return by_call(fclonefileat) if platform == "darwin" else by_ioctl
