"""The two protocols of a systemd service: sockets it was started with, and news for the manager.

sd_listen_fds(3) and sd_notify(3), without libsystemd. Outside systemd both do nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping

FIRST_FD = 3


def activated(environ: MutableMapping[str, str], *, pid: int) -> dict[str, list[socket.socket]]:
    """The sockets that were passed to this process, by name, close-on-exec; the variables are taken out of
    `environ`.
    """
    meant = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if meant != str(pid) or not count.isdecimal():
        return {}
    found: dict[str, list[socket.socket]] = {}
    for number in range(int(count)):
        fd = FIRST_FD + number
        os.set_inheritable(fd, False)
        name = names[number] if number < len(names) and names[number] else "unknown"
        found.setdefault(name, []).append(socket.socket(fileno=fd))
    return found


def notify(environ: Mapping[str, str], *lines: str) -> bool:
    """True when the manager was told. `lines` are assignments like READY=1."""
    where = environ.get("NOTIFY_SOCKET", "")
    if not where:
        return False
    address = "\0" + where[1:] if where.startswith("@") else where
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True
