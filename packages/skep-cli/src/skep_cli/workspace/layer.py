"""One layer of an overlay, read by descriptors: nothing on the way to a file is ever a link that was followed.

The upper layer is what a worker wrote, as overlayfs keeps it (Documentation/filesystems/overlayfs.rst of Linux): a
0:0 character device stands for something that was deleted, a folder with `user.overlay.opaque` hides all of what was
there before. Neither can be made by the worker itself (the kernel refuses both inside an overlay), and both only take
away what it could delete anyway; what else it can make is content. No attribute that leads elsewhere (redirects,
metadata-only copies) is obeyed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import msgspec
from skep_policy.report import Finding

from skep_cli.findings import is_whiteout
from skep_cli.git.objects import BLOCK, Source, blob_id, bytes_source

from .listing import MAX_FINDINGS, MAX_PATH, Stamp, kind_of, stamp_of
from .removal import open_up

OPAQUE = "user.overlay.opaque"
_WAY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)


def is_content(info: os.stat_result | None) -> bool:
    """A file or link: what a patch can hold."""
    return info is not None and (stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode))


class Upper(msgspec.Struct):
    """What stands in an upper layer, by relative path, `.git` apart."""

    files: dict[str, Stamp] = msgspec.field(default_factory=dict[str, Stamp])
    folders: list[str] = msgspec.field(default_factory=list[str])
    gone: list[str] = msgspec.field(default_factory=list[str])
    opaque: list[str] = msgspec.field(default_factory=list[str])
    nested: list[str] = msgspec.field(default_factory=list[str])
    """Folders below the top that have a `.git` in this layer."""
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])

    def report(self, kind: str, path: str, detail: str) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(kind, path, detail))


class Layer:
    """A tree. `ours`: what nobody may read in it is opened up, since it is in a folder of ours and its writer is
    gone.
    """

    def __init__(self, root: str, *, ours: bool) -> None:
        self._ours = ours
        self._top = os.open(root, _WAY)
        self._at: tuple[str, int] = ("", self._top)

    def close(self) -> None:
        self._leave()
        os.close(self._top)

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self) -> None:
        if self._at[1] != self._top:
            os.close(self._at[1])
        self._at = ("", self._top)

    def _folder(self, relative: str) -> int:
        """The folder's descriptor, held until the next call. Raises OSError when a link or a file is on the way."""
        if self._at[0] == relative:
            return self._at[1]
        self._leave()
        here = self._top
        for name in relative.split("/") if relative else ():
            try:
                deeper = self._enter(name, here)
            finally:
                if here != self._top:
                    os.close(here)
            here = deeper
        self._at = (relative, here)
        return here

    def _enter(self, name: str, parent: int) -> int:
        try:
            return os.open(name, _WAY, dir_fd=parent)
        except PermissionError:
            if not self._ours:
                raise
            open_up(name, parent)
            return os.open(name, _WAY, dir_fd=parent)

    def stat(self, path: str) -> os.stat_result | None:
        """What stands at the path itself; None when nothing does or the way to it is none."""
        folder, _, name = path.rpartition("/")
        try:
            return os.stat(name or ".", dir_fd=self._folder(folder), follow_symlinks=False)
        except OSError:
            return None

    def entries(self, relative: str) -> list[tuple[str, os.stat_result]]:
        """Names and stats of a folder's entries, sorted. Raises OSError."""
        fd = self._listable(relative)
        try:
            found = [(name, os.stat(name, dir_fd=fd, follow_symlinks=False)) for name in sorted(os.listdir(fd))]
        finally:
            os.close(fd)
        return found

    def _listable(self, relative: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        parent, _, name = relative.rpartition("/")
        try:
            return os.open(".", flags, dir_fd=self._folder(relative))
        except PermissionError:
            if not self._ours or not name:
                raise
            open_up(name, self._folder(parent))
            self._leave()
            return os.open(".", flags, dir_fd=self._folder(relative))

    def is_opaque(self, relative: str) -> bool:
        fd = self._listable(relative)
        try:
            return os.getxattr(fd, OPAQUE) == b"y"
        except OSError:
            return False
        finally:
            os.close(fd)

    def source(self, path: str, st_mode: int, object_format: str) -> Source:
        """The file or link as an object, hashed now and read again when it is written. Raises OSError."""
        folder, _, name = path.rpartition("/")
        if stat.S_ISLNK(st_mode):
            text = os.fsencode(os.readlink(name, dir_fd=self._folder(folder)))
            return bytes_source(blob_id((text,), len(text), object_format), "blob", text)
        fd = self._open(path)
        with os.fdopen(fd, "rb", buffering=0) as file:
            size = os.fstat(fd).st_size
            oid = blob_id(iter(lambda: file.read(BLOCK), b""), size, object_format)
        return Source(oid, "blob", size, lambda: self._blocks(path))

    def read(self, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a regular file. Raises OSError."""
        with os.fdopen(self._open(path), "rb", buffering=0) as file:
            return file.read(limit)

    def _blocks(self, path: str) -> Iterator[bytes]:
        with os.fdopen(self._open(path), "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block

    def _open(self, path: str) -> int:
        folder, _, name = path.rpartition("/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._folder(folder))
        except PermissionError:
            if not self._ours:
                raise
            open_up(name, self._folder(folder))
            fd = os.open(name, flags, dir_fd=self._folder(folder))
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(22, "is no regular file", path)
        return fd

    def files(self, top: str) -> Iterator[tuple[str, os.stat_result]]:
        """Every file and link at or below a path, `.git` apart; what cannot be read is left out."""
        pending = [top]
        while pending:
            relative = pending.pop()
            info = self.stat(relative)
            if info is None or relative.rpartition("/")[2] == ".git":
                continue
            if is_content(info):
                yield relative, info
            elif stat.S_ISDIR(info.st_mode):
                try:
                    names = [name for name, _ in self.entries(relative)]
                except OSError:
                    continue
                pending += [f"{relative}/{name}" if relative else name for name in reversed(names)]


def read_upper(layer: Layer) -> Upper:
    """All of an upper layer. What can be no part of a patch is a finding."""
    found = Upper()
    pending = [""]
    while pending:
        relative = pending.pop()
        try:
            entries = layer.entries(relative)
            if relative and layer.is_opaque(relative):
                found.opaque.append(relative)
        except OSError as error:
            found.report("unreadable", relative, error.strerror or str(error))
            continue
        for name, info in entries:
            path = f"{relative}/{name}" if relative else name
            if name == ".git":
                if relative and not is_whiteout(info):
                    found.nested.append(relative)
            elif len(os.fsencode(path)) > MAX_PATH:
                found.report("too-long", path[:200] + "…", "its path is too long for a patch")
            elif is_whiteout(info):
                found.gone.append(path)
            elif stat.S_ISDIR(info.st_mode):
                found.folders.append(path)
                pending.append(path)
            elif is_content(info):
                found.files[path] = stamp_of(info)
            else:
                found.report("special", path, f"a {kind_of(info.st_mode)}, which no patch can hold")
    return found
