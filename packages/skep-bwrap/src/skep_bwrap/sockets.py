"""The host's Unix sockets, as seen from outside: a read-only mount does not stop connect(2), so each one is covered."""

from __future__ import annotations

import os
import stat

LISTENING = 0x00010000  # __SO_ACCEPTCON
SOCK_DGRAM = 2


def parse_census(table: str) -> list[str]:
    """Paths of /proc/net/unix that somebody can be spoken to through: listening ones, and bound datagram ones.
    Sorted.
    """
    found: set[str] = set()
    for line in table.splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) < 8:
            continue
        flags, kind, path = fields[3], fields[4], fields[7]
        if path.startswith("/") and (int(flags, 16) & LISTENING or int(kind, 16) == SOCK_DGRAM):
            found.add(path)
    return sorted(found)


def census() -> list[str]:
    """Host sockets that exist at their path now, with links resolved. Sorted, each once."""
    with open("/proc/net/unix", errors="surrogateescape") as table:
        listed = parse_census(table.read())
    found: set[str] = set()
    for path in listed:
        real = os.path.realpath(path)
        try:
            if stat.S_ISSOCK(os.lstat(real).st_mode):
                found.add(real)
        except OSError:
            continue
    return sorted(found)
