"""Other names (hard links) of files: what is covered at one name is read and written by another.

A worker cannot give another name to what is covered, but to what it made itself and to what came while it ran; that is
covered in the next launch.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

MAX_LOOKED = 20_000
"""Entries of protected folders that are looked at."""
MAX_WALKED = 1_000_000
"""Folders in which other names are looked for, once there must be some."""
SKIPPED = frozenset(("objects", "refs", "logs", "lfs", "annex"))
"""Folders of a git folder with many files, of which git runs none; a clone on the same disk shares objects."""

Identity = tuple[int, int]
"""Device and inode."""


class TooMany(Exception):
    """There is more than is looked at."""


def shared(paths: Iterable[str]) -> dict[Identity, str]:
    """The files with other names too, of these and of what is in these folders. Raises TooMany."""
    found: dict[Identity, str] = {}
    todo = list(paths)
    for path in todo:  # which grows meanwhile
        if len(todo) > MAX_LOOKED:
            raise TooMany
        try:
            info = os.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                todo += [f"{path}/{name}" for name in os.listdir(path) if name not in SKIPPED]
            elif not stat.S_ISLNK(info.st_mode) and info.st_nlink > 1:
                found[info.st_dev, info.st_ino] = path
        except OSError:
            continue
    return found


def other_names(
    files: dict[Identity, str], folders: Iterable[str], *, without: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Each other name of a file in these folders, but in those of `without`, with the name that is known. Raises
    TooMany.
    """
    inodes = {inode for _, inode in files}
    todo = list(dict.fromkeys(folders)) if files else []
    for folder in todo:  # which grows meanwhile
        if len(todo) > MAX_WALKED:
            raise TooMany
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path not in without:
                            todo.append(entry.path)
                    elif entry.inode() in inodes:
                        info = entry.stat(follow_symlinks=False)
                        known = files.get((info.st_dev, info.st_ino))
                        if known is not None and entry.path != known:
                            yield entry.path, known
        except OSError:
            continue
