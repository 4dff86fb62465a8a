"""The audit log on disk: appending to it, mending it after a crash, checking a whole run against it.

A record is written in one piece before whatever it tells goes on. `append` returns when it is on disk; `note`, for
egress decisions made on the proxy's thread, returns when the kernel has it (so no death of skep loses it) and a thread
of the log's own brings it to disk right after, many at once when many come. Events with `{"files": {NAME: SHA-256 or
null}}` in their data say what the other files of the run's folder hold from then on; the last one counts.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from skep_cli.errors import SkepError

from . import chain
from .chain import Chain, Data, Event, Head, Problem
from .state import RunFolder, read_file, replace, write_new

MAX_LOG = 1 << 30
"""Bytes of a log that are read: more than any run writes, less than memory."""
MAX_SMALL = 1 << 16


def now() -> str:
    """UTC, to the microsecond, as text that sorts."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Log:
    """A log open for appending. One at a time per run: its holder holds the run's lock."""

    def __init__(self, folder: RunFolder, *, on_failure: Callable[[OSError], None] | None = None) -> None:
        """Open or begin the log. What a crash left unfinished is cut off and said so in a record.

        Raises SkepError when the log does not hold. `on_failure` is told, on any thread, when records cannot be
        written.
        """
        self._folder = folder
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._syncer: threading.Thread | None = None
        self._dirty = self._closing = False
        self._head_lock = threading.Lock()
        self._head_count = -1
        self.failure: OSError | None = None
        fresh = not folder.log.exists()
        found = Chain((), 0, None) if fresh else load(folder)
        problem = None if fresh else chain.against_head(found, head_of(folder))
        if problem and not problem.torn:
            raise SkepError(f"the record of {folder.id} does not hold: {problem}")
        self._count = len(found.events)
        self._hash = found.events[-1].hash if found.events else chain.genesis(folder.id)
        self._fd = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        lost = os.fstat(self._fd).st_size - found.size
        if lost:
            os.ftruncate(self._fd, found.size)
        if fresh:
            self._write_head(self._count, self._hash)
        if problem:
            self.append("recovered", {"bytes_dropped": lost, "was": str(problem)})

    def append(self, kind: str, data: Data) -> None:
        """The record is on disk, and the head knows it. Raises OSError; the log then ends where it ended before."""
        with self._lock:
            if self.failure:
                raise self.failure
            self._write(kind, data)
            os.fsync(self._fd)
            self._write_head(self._count, self._hash)

    def note(self, kind: str, data: Data) -> None:
        """The record is written, and on disk soon. Never raises: `failure` and `on_failure` tell."""
        with self._lock:
            if self.failure:
                return
            try:
                self._write(kind, data)
            except OSError as error:
                self._failed(error)
                return
            if self._syncer is None:
                self._syncer = threading.Thread(target=self._sync, name="skep-audit", daemon=True)
                self._syncer.start()
            self._dirty = True
            self._wake.notify()

    def close(self) -> None:
        """Everything noted is on disk."""
        with self._lock:
            self._closing = True
            self._wake.notify()
        if self._syncer is not None:
            self._syncer.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, kind: str, data: Data) -> None:
        line, digest = chain.encode(self._count + 1, now(), self._hash, kind, data)
        before = os.fstat(self._fd).st_size
        try:
            if os.write(self._fd, line) != len(line):
                raise OSError(28, os.strerror(28), str(self._folder.log))
        except OSError:
            os.ftruncate(self._fd, before)
            raise
        self._count, self._hash = self._count + 1, digest

    def _write_head(self, count: int, digest: str) -> None:
        with self._head_lock:
            if count > self._head_count:
                replace(self._folder.head, b'{"count":%d,"hash":"%s"}\n' % (count, digest.encode()))
                self._head_count = count

    def _sync(self) -> None:
        while True:
            with self._lock:
                while not self._dirty and not self._closing:
                    self._wake.wait()
                if not self._dirty:
                    return
                self._dirty = False
                reached = self._count, self._hash
            try:
                os.fsync(self._fd)
                self._write_head(*reached)
            except OSError as error:
                with self._lock:
                    self._failed(error)
                return

    def _failed(self, error: OSError) -> None:
        self.failure = error
        if self._on_failure:
            self._on_failure(error)

    def keep(self, name: str, content: bytes, kind: str, data: Data) -> None:
        """A file of the run's folder and the record that holds its digest, so that a crash in between can be mended."""
        path = self._folder.path / name
        pending = path.with_name(name + ".next")
        write_new(pending, content)
        files = {**data.get("files", {}), name: hashlib.sha256(content).hexdigest()}
        self.append(kind, {**data, "files": files})
        os.replace(pending, path)


def load(folder: RunFolder) -> Chain:
    """The log as far as it holds. Raises SkepError when it cannot be read."""
    try:
        return chain.read(read_file(folder.log, MAX_LOG), folder.id)
    except OSError as error:
        raise SkepError(f"{folder.log}: {error.strerror}") from error


def head_of(folder: RunFolder) -> Head | None:
    try:
        return msgspec.json.decode(read_file(folder.head, MAX_SMALL), type=Head)
    except (OSError, SkepError, msgspec.MsgspecError):
        return None


def digest(path: Path) -> str | None:
    """SHA-256 of a regular file, None when there is none. Raises OSError, for a link too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Checked(msgspec.Struct, frozen=True):
    """A run against its record."""

    events: tuple[Event, ...]
    files: int
    problem: Problem | None

    def last(self, kind: str) -> Data | None:
        """The data of the last event of a kind."""
        return next((event.data for event in reversed(self.events) if event.kind == kind), None)


def check(folder: RunFolder) -> Checked:
    """Follow the log, then compare every file it has a digest of. The first problem is told."""
    try:
        found = load(folder)
    except SkepError as error:
        return Checked((), 0, Problem(str(error), file=folder.log.name))
    problem = chain.against_head(found, head_of(folder))
    expected: dict[str, Any] = {}
    for event in found.events:
        files: Any = event.data.get("files")
        if isinstance(files, dict):
            expected.update(cast("dict[str, Any]", files))
    if problem is None or problem.torn:
        for name, wanted in sorted(expected.items()):
            wrong = _compare(folder, name, wanted)
            if wrong:
                return Checked(found.events, len(expected), wrong)
    if problem is None and not found.events:
        problem = Problem("is empty", file=folder.log.name)
    return Checked(found.events, len(expected), problem)


def _compare(folder: RunFolder, name: str, wanted: object) -> Problem | None:
    path = folder.path / name
    pending = path.with_name(path.name + ".next")
    try:
        there = digest(path)
        if there != wanted and wanted is not None and digest(pending) == wanted:
            os.replace(pending, path)  # a crash between the record and the file: finish what was begun
            there = wanted
    except OSError as error:
        return Problem(error.strerror or str(error), file=name)
    if there == wanted:
        return None
    if there is None:
        return Problem("is missing", file=name)
    return Problem("was added" if wanted is None else "was changed after it was recorded", file=name)


def dump(value: object) -> bytes:
    """JSON for a file people read. Names that are no UTF-8 are kept as escapes."""
    return (json.dumps(msgspec.to_builtins(value), indent=1) + "\n").encode("ascii")
