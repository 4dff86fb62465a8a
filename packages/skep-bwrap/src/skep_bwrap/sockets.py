"""The host's Unix sockets, as seen from outside: a read-only mount does not stop connect(2), so each one is covered.

The kernel lists those of one network namespace, under the names they were bound by. So the list is completed by

- the tables of other network namespaces that processes we may look at live in (containers of ours, for root all);
- names bound relative to a folder, looked for in the folders processes are in;
- sockets mounted into this file system one by one, which need not be in any table here (a container's `docker.sock`).

What stays open: a socket that a daemon binds outside of `/run`, `/tmp` and `/var/tmp` after the launch, or that was
renamed since it was bound.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from .mountinfo import Mount, single_files

LISTENING = 0x00010000  # __SO_ACCEPTCON
SOCK_DGRAM = 2
MAX_TABLE = 16 << 20


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


def census(mounts: Sequence[Mount] = ()) -> list[str]:
    """Host sockets that exist at their path now, with links resolved. Sorted, each once."""
    names: set[str] = set()
    for table in tables():
        names.update(parse_census(table))
    relative = [name for name in names if not name.startswith("/")]
    places = [name for name in names if name.startswith("/")]
    if relative:
        places += [os.path.join(folder, name) for folder in folders_of_processes() for name in relative]
    places += single_files(mounts)
    return sorted(set(existing(places)))


def existing(places: Iterable[str]) -> Iterator[str]:
    for path in places:
        real = os.path.realpath(path)
        try:
            if stat.S_ISSOCK(os.lstat(real).st_mode):
                yield real
        except OSError:
            continue


def tables() -> Iterator[str]:
    """/proc/net/unix of our network namespace, and of each other one that a process we may look at is in."""
    seen = {os.readlink("/proc/self/ns/net")}
    yield read_table("/proc/self/net/unix")
    for pid in processes():
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
            if namespace not in seen:
                seen.add(namespace)
                yield read_table(f"/proc/{pid}/net/unix")
        except OSError:
            continue


def read_table(path: str) -> str:
    """The text with its bytes kept, newlines as they are: a name may hold what Python takes for a line's end."""
    with open(path, "rb") as table:
        return table.read(MAX_TABLE).decode(errors="surrogateescape")


def folders_of_processes() -> set[str]:
    found: set[str] = set()
    for pid in processes():
        try:
            found.add(os.readlink(f"/proc/{pid}/cwd"))
        except OSError:
            continue
    return found


def processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]
