"""The object store of a run: files hashed by us, missing objects written as one pack, contents read back in bulk.

What the user's repository already holds is never written again, and looking is all that is done to it: git's own way of
adding would renew the time stamps of the borrowed packs.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

from skep_cli.errors import SkepError
from skep_cli.stages.interrupts import held

from .hostgit import Git, GitFailed, failure
from .trees import Built, Entries, Entry, build

BLOCK = 1 << 20
MAX_ERRORS = 1 << 16
"""Bytes kept of what git says; one line of it is shown."""
_TYPES = {"commit": 1, "tree": 2, "blob": 3}


class Source(NamedTuple):
    """An object to write: its content comes in blocks, of `size` bytes together, when it is its turn."""

    oid: str
    kind: str
    size: int
    blocks: Callable[[], Iterator[bytes]]


def bytes_source(oid: str, kind: str, content: bytes) -> Source:
    return Source(oid, kind, len(content), lambda: iter((content,)))


def open_regular(path: str) -> int:
    """A descriptor of a regular file, no link followed, never blocking. Raises OSError; ELOOP for a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "is no regular file", path)
    return fd


def file_blocks(path: str) -> Iterator[bytes]:
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            yield block


def hash_file(path: str, st_mode: int, object_format: str) -> tuple[str, int]:
    """The blob id of a regular file or link as it is, and its size. Raises OSError."""
    if stat.S_ISLNK(st_mode):
        content = os.fsencode(os.readlink(path))
        return blob_id((content,), len(content), object_format), len(content)
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size <= BLOCK:
            content = os.read(fd, BLOCK + 1)
            if len(content) == size:
                return blob_id((content,), size, object_format), size
            os.lseek(fd, 0, os.SEEK_SET)
        return blob_id(iter(lambda: os.read(fd, BLOCK), b""), size, object_format), size
    finally:
        os.close(fd)


def blob_id(blocks: Iterable[bytes], size: int, object_format: str) -> str:
    """The id of a blob of `size` bytes that come in blocks."""
    digest = hashlib.new(object_format, b"blob %d\0" % size, usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def file_source(path: str, st_mode: int, oid: str, size: int) -> Source:
    if stat.S_ISLNK(st_mode):
        return bytes_source(oid, "blob", os.fsencode(os.readlink(path)))
    return Source(oid, "blob", size, lambda: file_blocks(path))


class Store:
    """The objects one git dir sees."""

    def __init__(self, git: Git, object_format: str) -> None:
        self.git = git
        self.object_format = object_format

    def missing(self, oids: Iterable[str]) -> set[str]:
        wanted = sorted(set(oids))
        if not wanted:
            return set()
        answer = self.git.run("cat-file", "--batch-check=%(objectname)", stdin="\n".join(wanted).encode() + b"\n")
        return {line.split()[0].decode() for line in answer.splitlines() if line.endswith(b" missing")}

    def add(self, sources: Iterable[Source], *, fsck: bool = False) -> int:
        """Every source is in the store, those that were missing as one pack. Returns how many were.

        `fsck` refuses what git would not take from a stranger, such as a tree with an entry `.git`. Raises SkepError
        when a content is not what its id says (a file changed meanwhile), OSError when there is no room.
        """
        known = {source.oid: source for source in sources}
        missing = [known[oid] for oid in sorted(self.missing(known))]
        if not missing:
            return 0
        words = ("index-pack", "--stdin", *(("--fsck-objects",) if fsck else ()))
        process = errors = None
        try:
            with held:
                process = self.git.start(
                    *words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
                )
                errors = _Errors(process)
            assert process.stdin is not None
            write_pack(process.stdin, missing, self.object_format)
            process.stdin.close()
        except BrokenPipeError:
            pass  # git says why
        except BaseException:
            if process is not None:
                process.kill()
            raise
        finally:
            if process is not None:
                process.communicate()
            if errors is not None:
                errors.join()
        assert process is not None and errors is not None
        if process.returncode != 0:
            raise failure("index-pack", process.returncode, bytes(errors.text))
        left = self.missing(known)
        if left:
            raise SkepError(f"{len(left)} files changed while they were read; the first has the object id {min(left)}")
        return len(missing)

    def add_tree(self, entries: Entries) -> str:
        """The tree is in the store, without its files; its id."""
        return self.add_built(build(entries, self.object_format))

    def add_built(self, built: Built) -> str:
        self.add(bytes_source(oid, "tree", content) for oid, content in built.objects.items())
        return built.root

    def tree(self, treeish: str) -> dict[str, Entry]:
        """Every file, link and submodule of a tree or commit."""
        entries: dict[str, Entry] = {}
        for row in self.git.run("ls-tree", "-r", "-z", "--full-tree", treeish).split(b"\0"):
            if row:
                about, path = row.split(b"\t", 1)
                mode, _, oid = about.split(b" ")
                entries[os.fsdecode(path)] = Entry(int(mode, 8), oid.decode())
        return entries

    def read(self, oids: Iterable[str]) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """(id, size, blocks) of each, in order. The blocks are to be used up before the next. Raises GitFailed for a
        missing one.
        """
        with tempfile.TemporaryFile(dir=self.git.git_dir) as wanted:
            wanted.writelines(oid.encode() + b"\n" for oid in oids)
            wanted.seek(0)
            process = None
            try:
                with held:
                    process = self.git.start(
                        *("cat-file", "--batch", "--buffer"),
                        stdin=wanted,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        bufsize=BLOCK,
                    )
                assert process.stdout is not None
                while header := process.stdout.readline():
                    words = header.split()
                    if len(words) != 3:
                        raise GitFailed(f"the object {words[0].decode()} is missing from the repository")
                    size = int(words[2])
                    yield words[0].decode(), size, _exactly(process.stdout, size)
                    process.stdout.read(1)
            finally:
                if process is not None and process.stdout is not None:
                    process.stdout.close()
                    process.wait()

    def content(self, oid: str) -> bytes:
        """One blob, whole."""
        return self.git.run("cat-file", "blob", oid)


class _Errors(threading.Thread):
    """What a process says on stderr, its beginning, read while it says it: a file would find no room on a full disk,
    which is what git may have to say.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="skep-git-errors", daemon=True)
        self.text = bytearray()
        self._stream, process.stderr = process.stderr, None
        self.start()

    def run(self) -> None:
        assert self._stream is not None
        with self._stream as stream:
            while block := stream.read(1 << 12):
                self.text += block[: MAX_ERRORS - len(self.text)]


def _exactly(stream: IO[bytes], size: int) -> Iterator[bytes]:
    while size:
        block = stream.read(min(size, BLOCK))
        if not block:
            raise GitFailed("git ended in the middle of an object")
        size -= len(block)
        yield block


def write_pack(out: IO[bytes], sources: list[Source], object_format: str) -> None:
    """A pack, as gitformat-pack(5) describes it, without deltas. Raises SkepError when a source has another size than
    it said.
    """
    digest = hashlib.new(object_format, usedforsecurity=False)

    def write(data: bytes) -> None:
        digest.update(data)
        out.write(data)

    write(b"PACK" + (2).to_bytes(4, "big") + len(sources).to_bytes(4, "big"))
    for source in sources:
        write(_header(_TYPES[source.kind], source.size))
        squeeze = zlib.compressobj(1)
        written = 0
        for block in source.blocks():
            written += len(block)
            write(squeeze.compress(block))
        write(squeeze.flush())
        if written != source.size:
            raise SkepError(f"a file changed while it was read (object id {source.oid})")
    out.write(digest.digest())


def _header(kind: int, size: int) -> bytes:
    """The type and the size, four bits of it in the first byte and seven in each that follows."""
    byte, size = (kind << 4) | (size & 15), size >> 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    out.append(byte)
    return bytes(out)
