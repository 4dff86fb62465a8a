"""Limits the kernel does not hold by itself, looked after by the guardian; and which limit a sandbox has met.

    memory      the sum over the sandbox's processes, and what its file systems in memory hold
    processes   its processes and threads: over it ends the sandbox where RLIMIT_NPROC does not bind, else it is noted
    disk        what is left of a file system the sandbox writes on, in bytes and in files

Each is a look every so often, from threads of their own: a file system that does not answer keeps the guardian from
nothing. The looks are closer together the less is left until the limit, and further apart the more they cost, up to
LONGEST.

A page may be in several processes. Resident sizes count it in each, which costs one read a process and is never too
little; only when they come to more than the limit, each process is asked for its part of what it shares (PSS). While a
look lasts nobody sees what is new, so it has an end: whom there is no time to ask counts as if it shared nothing.

Limits of this: what is used up and given back between two looks is not seen, nor are System V segments that no process
has mapped, and files of memfd_create(2) that none has open: mapped in part, or on their way through a socket. File
systems in memory that a worker mounts itself are ruled out by the shim.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Final

SHARE: Final = 0.02
CLOSEST, FARTHEST = 0.05, 1.0
"""Seconds between two looks, where they are cheap."""
LONGEST: Final = 2.0
"""And where they are not: nobody escapes them by being many."""
BYTES_A_SECOND: Final = 4 << 30
"""No faster is memory or a disk filled, for the next look to be in time."""
PROCESSES_A_SECOND: Final = 2000
FILES_A_SECOND: Final = 200_000
SURE: Final = 3
MAX_DESCRIPTORS: Final = 100_000
"""Of all processes together in one look: half a second or less."""
NOT_TOLD: Final = b"not told"
PAGE: Final = os.sysconf("SC_PAGE_SIZE")

IN_MEMORY: Final = ("/tmp", "/var/tmp", "/run", "/dev/shm")
"""Where the sandbox has file systems of its own."""

LIMIT_EVENTS: Final = (
    ("memory.events", "oom_kill", "memory"),
    ("memory.oom_control", "oom_kill", "memory"),
    ("pids.events", "max", "processes"),
)
"""File of a cgroup, the counter in it, and the limit it tells of: cgroup-v2.rst, cgroup-v1/memory.rst."""


def read(path: str, *, refused: bytes = b"") -> bytes:
    """A file of /proc, to its end: what is a list comes a page at a time. Empty when its process is gone, `refused`
    where it is not told us or this kernel has no such file.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except ProcessLookupError:
        return b""
    except PermissionError:
        return refused
    except OSError:
        return refused if os.path.exists(os.path.dirname(path)) else b""


def kilobytes(text: bytes, *keys: bytes) -> int:
    """The sum, in bytes, of the lines of a file of /proc that have these keys."""
    return sum(int(line.split()[1]) for line in text.split(b"\n") if line.partition(b":")[0] in keys) * 1024


class Tree:
    """The processes below a sandbox's pid 1 at one moment, itself left out. At most `enough` of them are looked for."""

    def __init__(self, top: int, enough: float = float("inf")) -> None:
        self.pids: list[int] = []
        self.tasks = 0
        todo = [top]
        for pid in todo:  # which grows meanwhile
            try:
                threads = os.listdir(f"/proc/{pid}/task")
            except OSError:
                continue
            for thread in threads:
                todo += map(int, read(f"/proc/{pid}/task/{thread}/children").split())
            if pid != top:
                self.pids.append(pid)
                self.tasks += len(threads)
                if self.tasks > enough:
                    break


def memory(top: int, pids: Sequence[int], limit: int, *, swap: bool) -> int:
    """Bytes a sandbox holds: no less than that when it is at most `limit`, else as near as the kernel tells."""
    held, most = in_file_systems(top), kilobytes(read("/proc/meminfo"), b"Shmem")  # of the whole host
    if most > limit // 4:  # else there is no need to look
        held += in_nameless_files(pids, most)
    if not swap:
        used = held + sum(int(parts[1]) for pid in pids if (parts := read(f"/proc/{pid}/statm").split())) * PAGE
        if used <= limit:
            return used
    own = {pid: read(f"/proc/{pid}/status") for pid in pids}
    upper = {pid: kilobytes(text, b"RssAnon", b"RssShmem", b"VmSwap") for pid, text in own.items()}
    used = held + sum(upper.values())
    if used <= limit:
        return used
    private = shared = 0
    begun = time.thread_time()
    for pid in pids:
        late = time.thread_time() - begun > LONGEST
        parts = NOT_TOLD if late else read(f"/proc/{pid}/smaps_rollup", refused=NOT_TOLD)
        private += upper[pid] if parts == NOT_TOLD else kilobytes(parts, b"Pss_Anon", b"SwapPss")
        shared += kilobytes(parts, b"Pss_Shmem")
        if private + max(shared, held) > limit:
            break
    return private + max(shared, held)  # files of a file system in memory may be mapped too


def in_file_systems(top: int) -> int:
    """Bytes in the sandbox's own file systems in memory, as its pid 1 sees them."""
    held: dict[int, int] = {}
    host = {os.stat(path).st_dev for path in IN_MEMORY if os.path.isdir(path)}
    for path in IN_MEMORY:
        try:
            seen = f"/proc/{top}/root{path}"
            device = os.stat(seen).st_dev
            if device not in host:
                info = os.statvfs(seen)
                held[device] = (info.f_blocks - info.f_bfree) * info.f_frsize
        except OSError:
            continue
    return sum(held.values())


def in_nameless_files(pids: Sequence[int], most: int) -> int:
    """Bytes in files of memfd_create(2) that processes have open; `most`, which is all there can be, when they have too
    much open to be looked at.
    """
    held: dict[int, int] = {}
    left = MAX_DESCRIPTORS
    for pid in pids:
        try:
            opened = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        left -= len(opened)
        if left < 0:
            return most
        for fd in opened:
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/memfd:"):
                    info = os.stat(f"/proc/{pid}/fd/{fd}")
                    held[info.st_ino] = info.st_blocks * 512
            except OSError:
                continue
    return sum(held.values())


def swaps() -> bool:
    return read("/proc/swaps").count(b"\n") > 1


def counts(top: int, pids: Sequence[int]) -> bool:
    """Whether pid 1 counts among its processes: RLIMIT_NPROC is per user namespace, and the worker may have its own."""
    try:
        return bool(pids) and os.readlink(f"/proc/{top}/ns/user") == os.readlink(f"/proc/{pids[0]}/ns/user")
    except OSError:
        return False


class Disk:
    """One file system and what is to be left of it. From a record `BYTES FILES PATH`."""

    def __init__(self, record: str) -> None:
        size, files, self.path = record.split(" ", 2)
        self.size, self.files = int(size), int(files)

    def room(self) -> float | None:
        """Seconds until the limit at the fastest; None when it is over."""
        try:
            info = os.statvfs(self.path)
        except OSError:
            return FARTHEST
        room = (info.f_bavail * info.f_frsize - self.size) / BYTES_A_SECOND
        if info.f_files:
            room = min(room, (info.f_favail - self.files) / FILES_A_SECOND)
        return None if room < 0 else room


class Watch:
    """Looks after the `records` of a plan from when it is made: `memory BYTES`, `processes N` (noted), `processes-end
    N`, `disk BYTES FILES PATH`. Once a limit is over, `over` names it and `tell` has been called. `met` names one that
    was come to.
    """

    def __init__(self, records: Sequence[str], first: Callable[[], int | None], tell: Callable[[], object]) -> None:
        """`first` is the pid of the sandbox's pid 1, None before there is one."""
        import _thread

        self.over: str | None = None
        self.met: str | None = None
        self._error: BaseException | None = None
        self._first = first
        self._tell = tell
        asked = [record.partition(" ")[::2] for record in records]
        self._limits = {name: int(value) for name, value in asked if name != "disk"}
        self._disks = [Disk(value) for name, value in asked if name == "disk"]
        self._swap = "memory" in self._limits and swaps()
        for look, wanted in ((self._look_at_processes, self._limits), (self._look_at_disks, self._disks)):
            if wanted:
                _thread.start_new_thread(self._keep_looking, (look,))

    def ended(self) -> str | None:
        """The limit that is over. Raises what has kept a look from being made."""
        if self._error is not None:
            raise self._error
        return self.over

    def _keep_looking(self, look: Callable[[], float]) -> None:
        try:
            while self.over is None:
                begun = time.thread_time()
                pause = min(max(look(), CLOSEST), FARTHEST)
                time.sleep(min(max(pause, (time.thread_time() - begun) / SHARE), LONGEST))
        except BaseException as error:  # what is not looked after any longer must not go on
            self._error = error
            self._end("")

    def _end(self, limit: str) -> float:
        self.over = limit
        try:
            self._tell()
        except OSError:
            pass  # it has been told so much that it will look anyway
        return FARTHEST

    def _look_at_processes(self) -> float:
        """Seconds until a limit at the fastest."""
        top = self._first()
        if top is None:
            return FARTHEST
        most = self._limits.get("processes-end")
        tree = Tree(top, enough=float("inf") if most is None else most)
        room = [FARTHEST]
        if most is not None:
            if tree.tasks > most:
                return self._end("processes")
            room.append((most - tree.tasks) / PROCESSES_A_SECOND)
        noted = self._limits.get("processes", most)
        if noted is not None and tree.tasks + counts(top, tree.pids) >= noted:
            self.met = "processes"
        limit = self._limits.get("memory")
        if limit is not None:
            used = self._memory(top, tree, limit)
            if used > limit:
                return self._end("memory")
            room.append((limit - used) / BYTES_A_SECOND)
        return min(room)

    def _memory(self, top: int, tree: Tree, limit: int) -> int:
        """As `memory`; what is over the limit is so SURE times in a row. While processes that share their pages end
        one after the other, the parts of those that are left grow, and the sum is too large.
        """
        used = memory(top, tree.pids, limit, swap=self._swap)
        for _ in range(SURE - 1):
            if used <= limit:
                break
            time.sleep(CLOSEST / 2)
            used = memory(top, Tree(top).pids, limit, swap=self._swap)
        return used

    def _look_at_disks(self) -> float:
        rooms = [disk.room() for disk in self._disks]
        known = [room for room in rooms if room is not None]
        return min(known) if len(known) == len(rooms) else self._end("disk-free")


def limit_met(watch: Watch | None, folders: Sequence[str], records: Sequence[str], peak: int) -> str | None:
    """Which limit a sandbox that failed and is gone has met, by its cgroups and the records of a plan. `peak` are the
    bytes of its largest process, which the kernel refuses more than the limit without a word to us. That process was
    forked from this one, whose own size it may be.
    """
    for folder in folders:
        for file, key, limit in LIMIT_EVENTS:
            if count(f"{folder}/{file}", key):
                return limit
    if watch is not None and watch.met is not None:
        return watch.met
    near = [int(record.split()[1]) * 7 // 8 for record in records if record.startswith("memory ")]
    if near and peak >= near[0] > kilobytes(read("/proc/self/status"), b"VmHWM"):
        return "memory"
    disks = [Disk(record.partition(" ")[2]) for record in records if record.startswith("disk ")]
    return "disk-free" if any(disk.room() is None for disk in disks) else None


def count(path: str, key: str) -> int:
    lines = (line.split() for line in read(path).decode().splitlines())
    return next((int(words[1]) for words in lines if len(words) == 2 and words[0] == key), 0)
