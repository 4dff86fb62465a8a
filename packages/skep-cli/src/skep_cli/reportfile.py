"""The file of `--report`, which may stand in a folder the worker writes.

An earlier worker can have left a link there that leads out of what it may write, and this one can put anything in the
file's place while it runs. So such a link is refused, and at the end the name leads to the report or an error says so.
"""

from __future__ import annotations

import errno
import os
import stat

from skep_policy.boundary import Access, Boundary, below
from skep_policy.errors import PolicyError
from skep_policy.paths import Tree


class Before:
    """What stood at a path before a launch. A report of an earlier one shall not be taken for this one's."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._was = _stamp(path)

    def remove_unwritten(self) -> None:
        """A regular file that nobody has written since, or that we have made and not written, is gone; but none that
        a link leads to, which a worker may have made.
        """
        now = _stamp(self._path)
        if self._path is None or now is None or (now != self._was and now[1] != 0) or _led(self._path):
            return
        try:
            os.unlink(self._path)
        except OSError:
            pass  # not ours to remove


def _led(path: str) -> bool:
    """Whether a link is on the way, but for those at the top (`/tmp` of macOS), where no worker ever writes."""
    try:
        place = Tree().place(os.path.join(os.getcwd(), path))
        return any(os.path.dirname(link) != "/" for link, _ in place.links)
    except (OSError, PolicyError):
        return True


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    try:
        info = os.lstat(path) if path is not None else None
    except OSError:
        return None
    return (info.st_ino, info.st_size, info.st_mtime_ns) if info is not None and stat.S_ISREG(info.st_mode) else None


class ReportFile:
    """Opened before the worker starts, so that one that cannot be written is told while nothing has happened."""

    def __init__(self, path: str, boundary: Boundary) -> None:
        """`path` is absolute. Raises OSError."""
        self._path = path
        self._boundary = boundary
        self._fd = -1
        self._open(0)

    def write(self, content: bytes) -> None:
        """The name leads to `content` and nothing else; once. Raises OSError."""
        try:
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                if not self._in_place():
                    self.close()
                    self._refuse_led_out(os.path.dirname(self._path))
                    if os.path.lexists(self._path):
                        os.unlink(self._path)
                    self._open(os.O_EXCL)
                os.ftruncate(self._fd, 0)
            view = memoryview(content)
            while view:
                view = view[os.write(self._fd, view) :]
        finally:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, flags: int) -> None:
        self._refuse_led_out(self._path)
        # Not blocking: a pipe that nobody reads would be waited for.
        flags |= os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, 0o666)
        os.set_blocking(self._fd, True)

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return False

    def _refuse_led_out(self, path: str) -> None:
        """Raise OSError when a link that a worker can make leads to what it cannot write, or to what programs of the
        host run by themselves: there it would be ours, and nobody would be told.
        """
        try:
            place = Tree().place(path)
        except PolicyError:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
        for link, _ in place.links:
            if self._boundary.access_to(link) == Access.WRITE and not self._may_be_led_to(place.path):
                raise OSError(errno.ELOOP, f"the worker can write this link, which leads to {place.path}", link)

    def _may_be_led_to(self, path: str) -> bool:
        from skep_policy.builtin import project_entries

        if self._boundary.access_to(path) != Access.WRITE or any(below(path, w.path) for w in self._boundary.watched):
            return False
        root = max((root.path for root in self._boundary.roots if below(path, root.path)), key=len)
        return project_entries().keys().isdisjoint(path[len(root) :].split("/"))
