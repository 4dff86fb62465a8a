"""What is in a tree: files and links by relative path, with what `stat` says of them, `.git` apart.

What a worker may have done is expected everywhere: no link is followed, folders it closed are opened up (they are
ours), paths too long for a patch are reported.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

import msgspec
from skep_policy.report import Finding

from .removal import open_up

MAX_PATH = 4000
"""Bytes of a path below the workspace; the system's limit is 4096 for the whole."""
MAX_FINDINGS = 1000


class Stamp(NamedTuple):
    """What `stat` says of a file or link. A change of content changes `ctime_ns`, which no worker can set."""

    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int


def stamp_of(info: os.stat_result) -> Stamp:
    return Stamp(info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


class Listing(msgspec.Struct):
    """The files and links of a tree by relative path, `.git` folders and files apart."""

    files: dict[str, Stamp] = msgspec.field(default_factory=dict[str, Stamp])
    folders: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Mode of each folder, the top ("") included."""
    nested: list[str] = msgspec.field(default_factory=list[str])
    """Folders below the top that have a `.git` of their own."""
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])

    def report(self, kind: str, path: str, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(kind, path, detail))


def kind_of(mode: int) -> str:
    kinds = (
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISFIFO, "pipe"),
        (stat.S_ISBLK, "block device"),
        (stat.S_ISCHR, "device"),
    )
    return next((name for test, name in kinds if test(mode)), "special file")


def scan(root: Path) -> Listing:
    """What a worker left. Folders it closed are opened; what can be no part of a patch is a finding."""
    found = Listing()
    pending = [""]
    while pending:
        relative = pending.pop()
        here = root / relative if relative else root
        try:
            entries = _entries(here)
        except OSError as error:
            found.report("unreadable", relative, error.strerror or str(error))
            continue
        found.folders[relative] = 0
        for entry in entries:
            path = f"{relative}/{entry.name}" if relative else entry.name
            if entry.name == ".git":
                if relative:
                    found.nested.append(relative)
                continue
            info = _look(entry)
            if info is None or len(os.fsencode(path)) > MAX_PATH:
                found.report("too-long", path[:200] + "…", "its path is too long for a patch")
            elif stat.S_ISDIR(info.st_mode):
                pending.append(path)
            elif stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
                found.files[path] = stamp_of(info)
            else:
                found.report("special", path, f"a {kind_of(info.st_mode)}, which no patch can hold")
    return found


def _look(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None when the whole path is longer than the system takes."""
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except PermissionError:
        open_up(folder.name, str(folder.parent))
        return list(os.scandir(folder))
