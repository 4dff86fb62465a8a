"""Descriptors that arrive over a Unix socket."""

from __future__ import annotations

import os
import socket
import struct

MAGIC = b"SKEP-HANDOFF 1 "
"""How a client begins that hands listeners over instead of asking for something."""

MAX_FDS = 253
"""Descriptors of one message: the kernel's SCM_MAX_FD."""


class Refused(Exception):
    """The offer is not taken; the text is told to the peer."""


def receive(sock: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Bytes and descriptors, the latter close-on-exec. Raises OSError; Refused when the kernel dropped some of them."""
    cloexec = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, control, flags, _ = sock.recvmsg(size, socket.CMSG_SPACE(MAX_FDS * 4), cloexec)
    fds: list[int] = []
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(content) - len(content) % 4
            fds += [fd for (fd,) in struct.iter_unpack("i", content[:whole])]
    for fd in fds if not cloexec else ():
        os.set_inheritable(fd, False)
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise Refused("more descriptors than one message carries, or than this process may open")
    return data, fds


def close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
