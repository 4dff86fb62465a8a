"""After a launch: what has appeared that was not there and that the host would act on by itself.

The worker is gone, what it left is hostile: a folder on the way to a watched path may have become a link to a file
of the user's. So every path is walked from its writable root without following links, by descriptors, and a link on
the way is itself what has appeared. In an overlay only what the worker wrote is looked at, never the user's own tree.
"""

from __future__ import annotations

import errno
import os
import stat

from skep_policy.aftermath import appeared
from skep_policy.boundary import Boundary, below
from skep_policy.report import Finding

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def look_after(boundary: Boundary, quarantine: str) -> list[Finding]:
    """A finding for every watched path that has appeared and every link that says something else than before.

    What git of the host would obey has been moved to `quarantine` on return, and the links are as they were.
    """
    findings: list[Finding] = []
    for watched in (*boundary.watched, *appeared(boundary)):
        found = _Spot.of(watched.path, boundary)
        if found is None:
            continue
        with found:
            if not found.exists():
                continue
            if watched.quarantine or found.is_detour:
                kept = found.put_away(quarantine)
                findings.append(Finding("quarantined", found.seen, f"{watched.reason}; moved to {kept}"))
            else:
                findings.append(Finding("appeared", found.seen, watched.reason))
    for link, text in sorted(boundary.links.items()):
        findings += _restored(link, text, boundary, quarantine)
    return findings


def _restored(link: str, text: str, boundary: Boundary, quarantine: str) -> list[Finding]:
    found = _Spot.of(link, boundary)
    if found is None:
        return [Finding("gone", link, f"the folder of a link to {text} is no longer there")]
    with found:
        if found.link_text() == text and not found.is_detour:
            return []
        detail = f"it was a link to {text}"
        if found.exists():
            detail += f"; what stood there was moved to {found.put_away(quarantine)}"
        if found.is_detour:
            return [Finding("quarantined", found.seen, detail)]
        os.symlink(text, found.name, dir_fd=found.folder)
        return [Finding("restored", link, detail)]


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
                deeper = os.open(part, _FOLDER, dir_fd=folder)
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
            info = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return not is_whiteout(info)

    def link_text(self) -> str | None:
        try:
            return os.readlink(self.name, dir_fd=self.folder)
        except OSError:
            return None

    def put_away(self, quarantine: str) -> str:
        """It is no longer at its name, and nothing of it was followed or run. Returns where it is kept.

        On another file system than the quarantine it is kept beside its place, under a name that nothing acts on.
        """
        os.makedirs(quarantine, mode=0o700, exist_ok=True)
        for number in range(1 << 20):
            kept = os.path.join(quarantine, f"{number}-{self.name}")
            if not os.path.lexists(kept):
                break
        else:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), quarantine)
        try:
            os.rename(self.name, kept, src_dir_fd=self.folder)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            aside = f"{self.name}.quarantined-{os.urandom(4).hex()}"
            os.rename(self.name, aside, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            return os.path.join(os.path.dirname(self.seen), aside)
        return kept


def is_whiteout(info: os.stat_result) -> bool:
    """Is it what an upper layer has for something that was deleted?"""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
