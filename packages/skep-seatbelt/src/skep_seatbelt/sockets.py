"""Where programs of the host listen on Unix sockets, from the words of netstat(1). Pure."""

from __future__ import annotations

from collections.abc import Iterable

NETSTAT = ("/usr/sbin/netstat", "-an", "-f", "unix")

COLUMNS = 8
"""Address, type, two queues, inode, conn, refs, nextref; then the path, which may have spaces."""


def parse_netstat(text: str) -> tuple[str, ...]:
    """The paths of bound sockets, sorted. Lines of any other form are passed over."""
    return tuple(sorted(set(_paths(text.splitlines()))))


def _paths(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        words = line.split(None, COLUMNS)
        if len(words) > COLUMNS and words[1] in ("stream", "dgram") and words[COLUMNS].startswith("/"):
            yield words[COLUMNS].rstrip()
