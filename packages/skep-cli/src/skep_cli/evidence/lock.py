"""A lock that is a file: held by one process at a time, and by none once that is gone, whatever number it had."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Lock:
    """Held from `take` to `release`, and dropped by the kernel when the process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self, *, wait: bool = True, create: bool = True) -> bool:
        """Whether it is held now. Without `create`, a lock that is not there is nobody's and is not taken."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        while True:
            try:
                fd = os.open(self._path, flags, 0o600)
            except FileNotFoundError:
                if create:
                    raise
                return False
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                if _same_file(fd, self._path):  # else its holder removed it while we waited
                    self._fd = fd
                    return True
            except BlockingIOError:
                os.close(fd)
                return False
            os.close(fd)

    def take_over(self, other: Lock) -> None:
        """What another one holds is held by this one; its file has been moved here."""
        self._fd, other._fd = other._fd, -1

    def release(self, *, keep: bool = False) -> None:
        """The file is gone and the lock with it; `keep` leaves the file, for whom it told something."""
        if self._fd >= 0:
            if not keep and _same_file(self._fd, self._path):
                self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        self.take()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def _same_file(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
