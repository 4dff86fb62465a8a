"""The results folder, read as what it is: files an untrusted program put there. No link is followed, everything is
bounded.
"""

from __future__ import annotations

import itertools
import os
import stat
from typing import Literal

import msgspec

from skep_cli.workspace.listing import kind_of

MAX_ENTRIES = 500
MAX_NAMES = 10_000
"""Names of one folder that are sorted; a worker can make millions."""
MAX_DEPTH = 8
MAX_TEXT = 16 << 10
"""Bytes of a text that is shown."""
SUMMARIES = ("summary.md", "summary.txt", "SUMMARY.md")
"""Where a worker may say what it did, for the reviewer."""


class Item(msgspec.Struct, frozen=True):
    """One thing in the results folder; `size` is 0 but for files."""

    path: str
    kind: Literal["file", "folder", "link", "other"]
    size: int
    detail: str = ""


class Results(msgspec.Struct, frozen=True):
    """The listing, sorted; `cut` when there is more than is listed."""

    items: tuple[Item, ...]
    cut: bool


def listing(folder: str) -> Results:
    """What is in the folder; nothing when it is gone."""
    items: list[Item] = []
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return Results((), False)
    try:
        whole = _walk(top, "", 0, items)
    finally:
        os.close(top)
    return Results(tuple(items), not whole)


def _walk(folder: int, prefix: str, depth: int, items: list[Item]) -> bool:
    """Whether everything was listed."""
    names, whole = _names(folder)
    for name in names:
        if len(items) >= MAX_ENTRIES:
            return False
        path = prefix + name
        try:
            info = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            items.append(Item(path, "other", 0, "in a closed folder"))
            continue
        if stat.S_ISREG(info.st_mode):
            items.append(Item(path, "file", info.st_size))
        elif stat.S_ISLNK(info.st_mode):
            items.append(Item(path, "link", 0, "not followed"))
        elif stat.S_ISDIR(info.st_mode):
            items.append(Item(path + "/", "folder", 0))
            if not _enter(folder, name, path, depth, items):
                return False
        else:
            items.append(Item(path, "other", 0, f"a {kind_of(info.st_mode)}"))
    return whole


def _names(folder: int) -> tuple[list[str], bool]:
    """Names in a folder, sorted, and whether those are all; of many, the ones the file system tells first."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_NAMES + 1)]
    return sorted(names[:MAX_NAMES]), len(names) <= MAX_NAMES


def _enter(folder: int, name: str, path: str, depth: int, items: list[Item]) -> bool:
    if depth + 1 >= MAX_DEPTH:
        return False
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return True  # closed by the worker: the folder itself is listed
    try:
        return _walk(inner, path + "/", depth + 1, items)
    finally:
        os.close(inner)


def text(folder: str, name: str) -> str | None:
    """The beginning of a regular file right in the folder, as text; None when there is none."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=top)
    except OSError:
        return None
    finally:
        os.close(top)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, MAX_TEXT).decode(errors="surrogateescape")
    finally:
        os.close(fd)


def summary(folder: str) -> str | None:
    """What the worker wrote for the reviewer."""
    return next((found for name in SUMMARIES if (found := text(folder, name))), None)
