"""After a launch: what has appeared that was not there and that the host would act on by itself.

The worker is gone, what it left is hostile: a folder on the way to a watched path may have become a link to a file
of the user's. So every path is walked from its writable root without following links, by descriptors, and a link on
the way is itself what has appeared. In an overlay only what the worker wrote is looked at, never the user's own tree.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

from skep_policy.aftermath import CLOSED, appeared
from skep_policy.boundary import Boundary, Watched, below
from skep_policy.report import Finding

from .workspace.removal import open_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_HAS_O_PATH = hasattr(os, "O_PATH")
_FOLDER = (os.O_PATH if _HAS_O_PATH else os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_ROUNDS = 50
"""Folders closed inside closed ones that are opened; what is deeper is told."""
MAX_KEPT_NAME = 200
"""Bytes of a name that is kept; the system's limit is 255 with what is put before or after it."""


def look_after(boundary: Boundary, quarantine: str, *, since: int = 0) -> list[Finding]:
    """A finding for every watched path that has appeared and every link that says something else than before.

    What git of the host would obey has been moved to `quarantine` on return, and the links are as they were. Never
    raises OSError: what cannot be looked at or moved is a finding too, and the rest is still looked after. Folders the
    worker closed on the way are opened. `since` is as of `appeared`.
    """
    findings: list[Finding] = []
    roots = _plain_roots(boundary)
    there = [watched for watched in boundary.watched if not _is_absent(watched.path, roots)]
    for watched in (*there, *_appeared(boundary, since)):
        try:
            findings += _looked_at(watched, boundary, quarantine)
        except OSError as error:
            why = f"{watched.reason}; it could not be looked at or moved ({error.strerror}): do so before you go on"
            findings.append(Finding("unreadable", _text(watched.path), why))
    for link, text in sorted(boundary.links.items()):
        try:
            findings += _restored(link, text, boundary, quarantine)
        except OSError as error:
            findings.append(Finding("unreadable", _text(link), f"it was a link to {text} ({error.strerror})"))
    return findings


def _plain_roots(boundary: Boundary) -> dict[str, str]:
    """The folder of the host by the writable root it is, of those that no overlay keeps apart."""
    roots = [root.path for root in boundary.roots if not any(below(root.path, seen) for seen in boundary.overlays)]
    found = {path: boundary.mapped.get(path, path) for path in roots}
    return {path: host for path, host in found.items() if os.path.isdir(host)}


def _is_absent(path: str, roots: dict[str, str]) -> bool:
    """Whether nothing stands at a name right in a root, where no way to it could have been bent: nearly all are."""
    folder, _, name = path.rpartition("/")
    if folder not in roots:
        return False
    try:
        os.lstat(f"{roots[folder]}/{name}")
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _appeared(boundary: Boundary, since: int) -> list[Watched]:
    """What has appeared, with the folders that could not be listed opened where they are ours to open."""
    found: set[Watched] = set()
    path = [os.path.abspath(entry) for entry in sys.path]
    for _ in range(MAX_ROUNDS):
        new = set(appeared(boundary, since=since, path=path)) - found
        found |= new
        closed = [item.path for item in new if item.reason == CLOSED]
        if not closed:
            break
        for path in closed:
            try:
                if path == boundary.workspace:
                    top = os.open(path, _FOLDER)
                    try:
                        _open_up(top)
                    finally:
                        os.close(top)
                elif (spot := _Spot.of(path, boundary)) is not None:
                    with spot:
                        _open_up_inside(spot.name, spot.folder)
            except OSError:
                continue
    return sorted(found)


def _looked_at(watched: Watched, boundary: Boundary, quarantine: str) -> list[Finding]:
    found = _Spot.of(watched.path, boundary)
    if found is None:
        return []
    with found:
        if not found.exists():
            return []
        if watched.quarantine or found.is_detour:
            kept = found.put_away(quarantine)
            return [Finding("quarantined", _text(found.seen), _text(f"{watched.reason}; moved to {kept}"))]
        return [Finding("appeared", _text(found.seen), watched.reason)]


def _restored(link: str, text: str, boundary: Boundary, quarantine: str) -> list[Finding]:
    found = _Spot.of(link, boundary)
    if found is None:
        return [Finding("gone", _text(link), f"the folder of a link to {text} is no longer there")]
    with found:
        if found.link_text() == text and not found.is_detour:
            return []
        detail = f"it was a link to {text}"
        if found.exists():
            detail += f"; what stood there was moved to {found.put_away(quarantine)}"
        if found.is_detour:
            return [Finding("quarantined", _text(found.seen), _text(detail))]
        _insist(lambda: os.symlink(text, found.name, dir_fd=found.folder), found.folder)
        return [Finding("restored", _text(link), _text(detail))]


class _Spot:
    """A name in an open folder of the host. `seen` is the worker's path of it; a detour is a link on the way to what
    was meant.
    """

    def __init__(self, folder: int, name: str, seen: str, *, is_detour: bool) -> None:
        self.folder = folder
        self.name = name
        self.seen = seen
        self.is_detour = is_detour

    @classmethod
    def of(cls, path: str, boundary: Boundary) -> _Spot | None:
        """Where `path` is on the host, or where the way to it was bent; None when the way ends before it."""
        root = max(
            (rule.path for rule in boundary.roots if below(path, rule.path) and rule.path != path),
            key=len,
            default=None,
        )
        if root is None:
            return None
        root = next((seen for seen in boundary.overlays if below(path, seen) and path != seen), root)
        seen = root
        overlay = boundary.overlays.get(root)
        host = overlay.upper if overlay else boundary.mapped.get(root, root)
        folder = os.open(host, _FOLDER & ~os.O_NOFOLLOW)
        *parents, name = path[len(root) :].strip("/").split("/")
        for part in parents:
            seen = f"{seen.rstrip('/')}/{part}"
            try:
                deeper = _opened(part, folder)
            except PermissionError:
                os.close(folder)
                raise
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(part, folder):
                    return cls(folder, part, seen, is_detour=True)
                os.close(folder)
                return None
            os.close(folder)
            folder = deeper
        return cls(folder, name, path, is_detour=False)

    def __enter__(self) -> _Spot:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)

    def exists(self) -> bool:
        try:
            info = _insist(lambda: os.stat(self.name, dir_fd=self.folder, follow_symlinks=False), self.folder)
        except FileNotFoundError:
            return False
        return not is_whiteout(info)

    def link_text(self) -> str | None:
        try:
            return _insist(lambda: os.readlink(self.name, dir_fd=self.folder), self.folder)
        except OSError:
            return None

    def put_away(self, quarantine: str) -> str:
        """It is no longer at its name, and nothing of it was followed or run. Returns where it is kept.

        Where the quarantine cannot take it (another file system, a full one) it is kept beside its place, under a name
        that nothing acts on.
        """
        short = os.fsdecode(os.fsencode(self.name)[:MAX_KEPT_NAME])
        try:
            os.makedirs(quarantine, mode=0o700, exist_ok=True)
            for number in range(1 << 20):
                kept = os.path.join(quarantine, f"{number}-{short}")
                if not os.path.lexists(kept):
                    self._move(kept, None)
                    return kept
        except OSError:
            pass
        aside = f"{short}.quarantined-{os.urandom(4).hex()}"
        self._move(aside, self.folder)
        return os.path.join(os.path.dirname(self.seen), aside)

    def _move(self, target: str, folder: int | None) -> None:
        """A folder that moves must be writable itself: its `..` changes."""
        try:
            os.rename(self.name, target, src_dir_fd=self.folder, dst_dir_fd=folder)
        except PermissionError:
            _open_up(self.folder)
            _open_up_inside(self.name, self.folder)
            os.rename(self.name, target, src_dir_fd=self.folder, dst_dir_fd=folder)


def _insist(do: Callable[[], T], folder: int) -> T:
    """What `do` gives; a folder the worker has closed is opened for it."""
    try:
        return do()
    except PermissionError:
        _open_up(folder)
        return do()


def _opened(name: str, folder: int) -> int:
    try:
        return _insist(lambda: os.open(name, _FOLDER, dir_fd=folder), folder)
    except PermissionError:
        if _HAS_O_PATH:
            raise
        open_up(name, folder)  # where nothing but a readable folder can be opened
        return os.open(name, _FOLDER, dir_fd=folder)


def _open_up(folder: int) -> None:
    """Raises PermissionError when it is not ours."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode) | 0o700
    if _HAS_O_PATH:  # fchmod takes no such descriptor
        os.chmod(f"/proc/self/fd/{folder}", mode)
    else:
        os.fchmod(folder, mode)


def _open_up_inside(name: str, folder: int) -> None:
    try:
        inner = _opened(name, folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _open_up(inner)
    finally:
        os.close(inner)


def _text(path: str) -> str:
    """A path with what is no UTF-8 escaped, for a record that is."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_whiteout(info: os.stat_result) -> bool:
    """Is it what an upper layer has for something that was deleted?"""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
