"""The host's Unix sockets, as seen from outside: a read-only mount does not stop connect(2), so each one is covered.

The kernel lists those of one network namespace, under the names they were bound by. So the list is completed by

- the tables of other network namespaces that processes we may look at live in (containers of ours, for root all);
- names bound relative to a folder, looked for in the folders processes are in;
- names bound in another root or mount namespace (a container's, on a volume that is a folder here; a chroot's), looked
  for where they lie in this one;
- names that are gone: daemons bind under a name of their own and rename, so every socket of such a folder counts;
- names that say nothing (`/proc/self/fd/7/s`) or were left for another folder: the kernel tells the file of such a
  socket, which is looked for in the folders that processes are in or have open, and beside the other sockets;
- sockets mounted into this file system one by one, which need not be in any table here (a container's `docker.sock`).

What stays open: a socket that a daemon binds outside of `/run`, `/tmp` and `/var/tmp` after the launch, and one that is
in none of those places; of such a one the name is told (`lost`).
"""

from __future__ import annotations

import os
import stat

from skep_policy.value import Value

from .mountinfo import Mount, parse, single_files, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

LISTENING = 0x00010000  # __SO_ACCEPTCON
SOCK_DGRAM = 2
MAX_TABLE = 16 << 20
MASKED = ("/run/", "/var/run/", "/tmp/", "/var/tmp/", "/dev/shm/")
"""Below these nothing of the host's is seen inside. Services have folders of their own there; none need be found."""


def parse_census(table: str) -> list[str]:
    """Names in /proc/net/unix of what somebody can be spoken to through: listening sockets, and bound datagram ones.
    Without abstract ones. Sorted.
    """
    found: set[str] = set()
    for line in table.split("\n")[1:]:
        fields = line.split(None, 7)
        if len(fields) < 8 or fields[7].startswith("@"):
            continue
        flags, kind, path = fields[3], fields[4], fields[7]
        if int(flags, 16) & LISTENING or int(kind, 16) == SOCK_DGRAM:
            found.add(path)
    return sorted(found)


class Census(Value):
    """`sockets` exist at their path now, with links resolved, each once; `lost` are names of sockets that were removed
    or are somewhere else, in a file system that can be seen here. Both sorted.
    """

    sockets: tuple[str, ...]
    lost: tuple[str, ...]


def census(mounts: Sequence[Mount] = (), pids: Sequence[str] | None = None) -> Census:
    """`pids` are the processes to look at, `processes()` when None."""
    pids = processes() if pids is None else pids
    tables, views = look_around(pids)
    names = {name for table in tables.values() for name in table}
    relative = [name for name in names if not name.startswith("/")]
    places = [name for name in names if name.startswith("/")]
    if relative:
        places += [os.path.join(folder, name) for folder in folders_of(pids) for name in relative]
    places += [place for pid, net in views for place in seen_by(pid, tables[net], mounts)]
    places += neighbours([place for place in places if not os.path.lexists(place)])
    places += single_files(mounts)
    real = existing(places)
    found = set(real.values())
    gone = [name for name in names if name not in real and not any(path.endswith(f"/{name}") for path in found)]
    lost: set[str] = set()
    if any(not name.startswith(MASKED) for name in gone):
        from . import sockdiag

        missing = sockdiag.files_of(gone)
        for file in map(sockdiag.file_of, found):
            if file is not None:
                missing.pop(file, None)
        located = sockdiag.find(missing, _around(missing.values(), found, pids)) if missing else {}
        found |= set(existing(located.values()).values())
        seen = {mount.device for mount in mounts}
        lost = {
            name
            for file, name in missing.items()
            if file not in located and not name.startswith(MASKED) and sockdiag.device_of(file) in seen
        }
    return Census(tuple(sorted(found)), tuple(sorted(lost)))


def _around(names: Iterable[str], found: Iterable[str], pids: Sequence[str]) -> set[str]:
    """Folders in which a socket may be that is not where its name says."""
    from .sockdiag import open_folders

    folders = open_folders(pids)
    for name in names:
        parts = name.split("/")
        if name.startswith("/proc/") and "fd" in parts:  # /proc/PID/fd/N/sub/s
            inner = "/".join(parts[parts.index("fd") + 2 : -1])
            folders |= {os.path.join(folder, inner) for folder in list(folders)} if inner else set()
        else:
            folders |= {os.path.dirname(name), os.path.dirname(os.path.dirname(name))}
    return folders | {os.path.dirname(path) for path in found}


def look_around(pids: Sequence[str]) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """The names in each network namespace that a process we may look at is in; and of each other root or mount
    namespace, one process and its network namespace.
    """
    here = os.readlink("/proc/self/ns/net")
    tables = {here: parse_census(read_table("/proc/self/net/unix"))}
    roots = {_root_of("self")}
    views: list[tuple[str, str]] = []
    for pid in pids:
        try:
            net = os.readlink(f"/proc/{pid}/ns/net")
            if net not in tables:
                tables[net] = parse_census(read_table(f"/proc/{pid}/net/unix"))
            root = _root_of(pid)
        except OSError:
            continue
        if (*root, net) not in roots and root not in roots:
            roots.add((*root, net))
            views.append((pid, net))
    return tables, views


def _root_of(pid: str) -> tuple[object, ...]:
    info = os.stat(f"/proc/{pid}/root")
    return os.readlink(f"/proc/{pid}/ns/mnt"), info.st_dev, info.st_ino


def seen_by(pid: str, names: Iterable[str], mounts: Sequence[Mount]) -> Iterator[str]:
    """Where sockets stand in our file system that a process knows by these names in another one."""
    root = f"/proc/{pid}/root"
    theirs: tuple[Mount, ...] | None = None
    same: dict[str, bool] = {}
    for name in names:
        if not name.startswith("/"):
            continue
        path = name.removeprefix("/var") if name.startswith("/var/run/") else name  # a link of theirs leads to ours
        folder = os.path.dirname(path)
        if folder not in same:
            same[folder] = _same_file(root + folder, folder)
        if same[folder]:
            continue
        try:
            if not stat.S_ISSOCK(os.lstat(root + path).st_mode):
                continue
            if theirs is None:
                with open(f"/proc/{pid}/mountinfo", errors="surrogateescape", newline="\n") as table:
                    theirs = parse(table.read())
            base = os.readlink(root)
        except OSError:
            continue
        for place in (base.rstrip("/") + path, *translated(path, theirs, mounts)):
            if _same_file(place, root + path):
                yield place


def _same_file(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def neighbours(gone: Iterable[str]) -> Iterator[str]:
    """Every socket in the folders of names that are no longer there."""
    for folder in {os.path.dirname(path) for path in gone}:
        try:
            with os.scandir(folder) as entries:
                paths = [entry.path for entry in entries]
        except OSError:
            continue
        yield from [path for path in paths if stat.S_ISSOCK(mode_of(path))]


def existing(places: Iterable[str]) -> dict[str, str]:
    """Place -> itself with links resolved, of those that are sockets, or may be: in a closed folder of ours, which a
    worker could open.
    """
    found: dict[str, str] = {}
    for path in places:
        real = os.path.realpath(path)
        if stat.S_ISSOCK(mode_of(real)) or _in_closed_folder(real):
            found[path] = real
    return found


def _in_closed_folder(path: str) -> bool:
    """Is it out of our sight, for a folder that is ours?"""
    folder = path
    while True:
        try:
            return os.lstat(folder).st_uid == os.geteuid() and folder != path
        except PermissionError:
            folder = os.path.dirname(folder)
        except OSError:
            return False


def read_table(path: str) -> str:
    """The text with its bytes kept, newlines as they are: a name may hold what Python takes for a line's end."""
    with open(path, "rb") as table:
        return table.read(MAX_TABLE).decode(errors="surrogateescape")


def pipes(pids: Iterable[str]) -> list[str]:
    """Named pipes that one of these processes has open, with links resolved: a read-only mount does not stop writing
    to one either. Sorted, each once. What is opened after the launch is not among them.
    """
    found: set[str] = set()
    for pid in pids:
        try:
            folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            for fd in os.listdir(folder):
                try:
                    found.add(os.readlink(fd, dir_fd=folder))
                except OSError:
                    continue  # closed meanwhile
        except OSError:
            pass
        finally:
            os.close(folder)
    named = [link for link in found if link.startswith("/") and not link.startswith(("/dev/", "/proc/"))]
    return sorted(path for path in named if stat.S_ISFIFO(mode_of(path)))


def mode_of(path: str) -> int:
    """Of what stands there, links as links; 0 when nothing does any more."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def folders_of(pids: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for pid in pids:
        try:
            found.add(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            continue
    return found


def processes() -> list[str]:
    """Pids of the processes whose sockets and files can be looked at. The kernel's own threads are not among them: they
    have no program, and nothing open.
    """
    found: list[str] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            os.readlink(f"/proc/{name}/exe")
        except OSError:
            continue
        found.append(name)
    return found
