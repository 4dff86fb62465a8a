"""Paths as the worker will see them: absolute, every link resolved, with what stands there.

The worker's view differs from the host's where a folder of a run stands in another's place (`mapped`), so the links are
walked here, one component at a time, and every look goes to the host's path of a worker's path.
"""

from __future__ import annotations

import os
import stat

from .boundary import below
from .errors import PolicyError
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    Kind = Literal["file", "dir", "absent"]

MAX_LINKS = 40
"""As many links as the kernel follows before it says ELOOP."""


class Place(Value):
    """What a path leads to. `path` is absolute without links; `links` are the links passed on the way, each with its
    text. `blocked` says that the way ended at a folder nobody may look into: `path` is that folder, and what stands
    below it is not known.
    """

    path: str
    kind: Kind
    mode: int = 0
    links: tuple[tuple[str, str], ...] = ()
    blocked: bool = False


def expand(text: str, *, base: str, home: str) -> str:
    """A path as written made absolute: `~` is the home folder, a relative one starts at `base`. Links and `..` stay."""
    if text == "~" or text.startswith("~/"):
        return home.rstrip("/") + text[1:] or "/"
    return text if text.startswith("/") else base.rstrip("/") + "/" + text


class Tree:
    """The file system in one resolution. What was looked at once is not looked at again."""

    def __init__(self, mapped: Mapping[str, str] | None = None) -> None:
        self._mapped = sorted((mapped or {}).items(), key=lambda item: -len(item[0]))
        self._seen: dict[str, tuple[int, str]] = {}
        self._folders: dict[str, Place] = {}

    def host(self, path: str) -> str:
        """The host's path of a worker's path without links."""
        for seen, source in self._mapped:
            if below(path, seen):
                return source + path[len(seen) :]
        return path

    def place(self, path: str) -> Place:
        """What an absolute path leads to. Raises PolicyError for a cycle of links."""
        folder, _, name = path.rpartition("/")
        if not folder or name in ("", ".", ".."):
            return self._walk(path)
        parent = self._folders.get(folder)
        if parent is None:  # most paths asked for share a few folders
            parent = self._folders[folder] = self._walk(folder)
        candidate = f"{parent.path.rstrip('/')}/{name}"
        if parent.kind == "absent":
            return Place(candidate, "absent", 0, parent.links)
        mode, target = self._look(candidate) if parent.kind == "dir" and not parent.blocked else (-1, "")
        if target or mode < 0:
            return self._walk(path)
        return Place(candidate, _kind(mode), mode, parent.links)

    def _walk(self, path: str) -> Place:
        """What `place` says, component by component."""
        todo = path.split("/")[::-1]
        current = ""
        mode = stat.S_IFDIR
        links: list[tuple[str, str]] = []
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                current = current.rpartition("/")[0]
                mode = stat.S_IFDIR
                continue
            candidate = f"{current}/{part}"
            mode, target = self._look(candidate)
            if mode < 0:
                return Place(current or "/", "dir", stat.S_IFDIR, tuple(links), blocked=True)
            if mode == 0 or (not stat.S_ISDIR(mode) and not target and any(part not in ("", ".") for part in todo)):
                return self._absent(candidate, todo, links)
            if not target:
                current = candidate
                continue
            links.append((candidate, target))
            if len(links) > MAX_LINKS:
                raise PolicyError(f"{path!r} is a cycle of links ({links[0][0]} and others); remove it")
            current = "" if target.startswith("/") else current
            mode = stat.S_IFDIR  # of where the link starts from; its text may be nothing but `.` or `/`
            todo += target.split("/")[::-1]
        return Place(current or "/", _kind(mode), mode, tuple(links))

    def _absent(self, candidate: str, todo: list[str], links: list[tuple[str, str]]) -> Place:
        """The place of a path that ends before its last part. The rest is joined by the letter; where it climbs back
        over what is absent, the kernel would stop, but whoever wrote `new/../deploy` means `deploy`.
        """
        parts = candidate.split("/")
        for part in reversed(todo):
            if part == "..":
                del parts[max(len(parts) - 1, 1) :]
            elif part not in ("", "."):
                parts.append(part)
        path = "/".join(parts) or "/"
        if ".." not in todo:
            return Place(path, "absent", 0, tuple(links))
        place = self.place(path)
        return Place(place.path, place.kind, place.mode, (*links, *place.links), place.blocked)

    def real(self, path: str) -> str:
        """A path with links resolved, as `os.path.realpath` does it: what many paths share is looked at once."""
        try:
            place = self.place(os.path.join(os.getcwd(), path))
        except (OSError, PolicyError):
            return path
        return path if place.blocked else place.path

    def names(self, folder: str) -> list[str]:
        """The entries of a folder without links in its path, sorted; none when it cannot be listed."""
        try:
            return sorted(os.listdir(self.host(folder)))
        except OSError:
            return []

    def entries(self, folder: str) -> dict[str, bool] | None:
        """Name -> whether it is a folder and no link, of what stands in a folder; None when it cannot be listed."""
        try:
            with os.scandir(self.host(folder)) as entries:
                return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            return None

    def entries_called(self, folder: str, names: Iterable[str]) -> dict[str, bool]:
        """The same for these names only, of a folder that cannot be listed: it may be searched all the same."""
        found: dict[str, bool] = {}
        for name in names:
            try:
                info = os.lstat(f"{self.host(folder)}/{name}")
            except OSError:
                continue
            found[name] = stat.S_ISDIR(info.st_mode)
        return found

    def changed(self, path: str) -> int:
        """When what stands at a path was changed last, in nanoseconds of a clock nobody can set back; 0 when nothing
        does.
        """
        try:
            return os.lstat(self.host(path)).st_ctime_ns
        except OSError:
            return 0

    def exists(self, path: str) -> bool:
        """True for whatever stands at a path, a link that leads nowhere included."""
        return self._look(path)[0] != 0

    def is_link(self, path: str) -> bool:
        return self._look(path)[1] != ""

    def is_folder(self, path: str) -> bool:
        """True for a folder, not for a link to one."""
        return stat.S_ISDIR(max(self._look(path)[0], 0))

    def read(self, path: str, limit: int) -> str | None:
        """The text of a small file without links in its path; None when it cannot be read or exceeds `limit` bytes."""
        try:
            fd = os.open(self.host(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            data = os.read(fd, limit + 1)
        except OSError:
            return None
        finally:
            os.close(fd)
        return data.decode("utf-8", "surrogateescape") if len(data) <= limit else None

    def owner(self, path: str) -> int | None:
        """The uid that owns what stands at a path without links."""
        try:
            return os.lstat(self.host(path)).st_uid
        except OSError:
            return None

    def _look(self, path: str) -> tuple[int, str]:
        """(mode, link text) of one path; a mode of 0 for what is absent, of -1 for what cannot be looked at."""
        seen = self._seen.get(path)
        if seen is None:
            seen = self._seen[path] = _lstat(self.host(path))
        return seen


def _kind(mode: int) -> Kind:
    return "absent" if mode == 0 else "dir" if stat.S_ISDIR(mode) else "file"


def _lstat(path: str) -> tuple[int, str]:
    try:
        mode = os.lstat(path).st_mode
        return mode, os.readlink(path) if stat.S_ISLNK(mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return 0, ""
    except ValueError:
        raise PolicyError(f"not a path: {path!r} holds a NUL character") from None
    except OSError as error:
        import errno

        if error.errno == errno.ENAMETOOLONG:
            raise PolicyError(f"not a path: a part of {path[:80]!r}... is too long") from None
        return -1, ""
