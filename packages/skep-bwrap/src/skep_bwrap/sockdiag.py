"""Unix sockets by device and inode, from sock_diag(7): for those whose names tell nothing (bound through
`/proc/self/fd/N`, moved to another folder since). Asked only when /proc/net/unix has a name that leads to no socket.
"""

from __future__ import annotations

import _socket
import os
import stat
import struct
from collections.abc import Iterable, Iterator

from .sockets import mode_of

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLMSG_DONE, NLMSG_ERROR = 4, 20, 3, 2
NLM_F_REQUEST_DUMP = 0x301
UDIAG_SHOW_NAME, UDIAG_SHOW_VFS = 1, 2
UNIX_DIAG_NAME, UNIX_DIAG_VFS = 0, 1
"""linux/netlink.h, sock_diag.h, unix_diag.h"""
MAX_ENTRIES = 10_000
"""Of one folder, that are looked at by number."""
MAX_ANSWER = 16 << 20

File = tuple[int, int]
"""Device (st_dev), and the low 32 bits of the inode, which is all that is told."""


def files_of(names: Iterable[str]) -> dict[File, str]:
    """The file and the name of each socket bound under one of the names; empty where the kernel does not tell."""
    wanted = {os.fsencode(name) for name in names}
    try:
        answer = _ask()
    except OSError:
        return {}
    return {file: os.fsdecode(name) for file, name in _parse(answer) if name in wanted}


def _ask() -> bytes:
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    try:
        body = struct.pack("=BBHIIIII", _socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_VFS, 0, 0)
        sock.send(struct.pack("=IHHII", 16 + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1, 0) + body)
        answer = b""
        while len(answer) < MAX_ANSWER:
            block = sock.recv(1 << 16)
            answer += block
            if any(kind in (NLMSG_DONE, NLMSG_ERROR) for kind, _, _ in messages(block)):
                break
        return answer
    finally:
        sock.close()


def messages(answer: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, beginning and end of each message of netlink(7)."""
    at = 0
    while at + 16 <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        yield kind, at, at + length
        at += max((length + 3) & ~3, 16)


def _parse(answer: bytes) -> Iterator[tuple[File, bytes]]:
    """(file, name) of every socket that has both."""
    for kind, start, end in messages(answer):
        if kind != SOCK_DIAG_BY_FAMILY:
            continue
        found: dict[int, bytes] = {}
        inner = start + 32  # after nlmsghdr and unix_diag_msg
        while inner + 4 <= end:
            size, attribute = struct.unpack_from("=HH", answer, inner)
            found[attribute] = answer[inner + 4 : inner + size]
            inner += max((size + 3) & ~3, 4)
        if UNIX_DIAG_NAME in found and len(found.get(UNIX_DIAG_VFS, b"")) == 8:
            inode, device = struct.unpack("=II", found[UNIX_DIAG_VFS])
            yield (os.makedev(device >> 20, device & 0xFFFFF), inode), found[UNIX_DIAG_NAME].rstrip(b"\0")


def file_of(path: str) -> File | None:
    """None when it is gone."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino & 0xFFFFFFFF


def device_of(file: File) -> str:
    """As the mount table writes it."""
    return f"{os.major(file[0])}:{os.minor(file[0])}"


def find(files: dict[File, str], folders: Iterable[str]) -> dict[File, str]:
    """Where each file stands in one of the folders, of those that do. By the inode alone: what the kernel tells as the
    device of a btrfs is not what stat says.
    """
    inodes = {file[1]: file for file in files}
    found: dict[File, str] = {}
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
                    file = inodes.get(entry.inode() & 0xFFFFFFFF)
                    if file is not None and stat.S_ISSOCK(mode_of(entry.path)):
                        found[file] = entry.path
        except OSError:
            continue
    return found


def open_folders(processes: Iterable[str]) -> set[str]:
    """The folders that processes are in or have open, as far as we may look."""
    found: set[str] = set()
    for pid in processes:
        try:
            found.add(os.readlink(f"/proc/{pid}/cwd"))
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in descriptors:
            try:
                path = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue  # closed meanwhile
            if path.startswith("/") and path not in found and os.path.isdir(f"/proc/{pid}/fd/{fd}"):
                found.add(path)
    return found
