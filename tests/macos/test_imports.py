"""Every module can be imported where what only Linux has is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"

# Loaded first: the standard library and our dependencies know their platform themselves.
STRIPPED = """
import _socket, ctypes, fcntl, importlib, os, select, signal, socket, sys
import anyio, asyncio, click, msgspec, rich, ssl, subprocess, tempfile, urllib.request, zoneinfo
import email, http.client, logging, multiprocessing, platformdirs, pty, shutil, sqlite3, tomllib
for module, names in {
    os: ["O_PATH", "O_TMPFILE", "memfd_create", "MFD_CLOEXEC", "MFD_ALLOW_SEALING", "eventfd", "eventfd_read",
         "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "splice", "SPLICE_F_MOVE", "SPLICE_F_NONBLOCK",
         "SPLICE_F_MORE", "copy_file_range", "getxattr", "setxattr", "listxattr", "removexattr", "pidfd_open",
         "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate", "getrandom", "unshare", "setns",
         "CLONE_NEWUSER", "GRND_NONBLOCK", "getresuid", "getresgid", "setresuid", "setresgid"],
    select: ["epoll", "EPOLLIN", "EPOLLOUT", "EPOLLRDHUP", "EPOLLET", "EPOLL_CLOEXEC", "POLLRDHUP"],
    signal: ["SIGPOLL", "SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "sigwaitinfo", "sigtimedwait",
             "pidfd_send_signal"],
    fcntl: ["F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_GET_SEALS", "F_OFD_SETLK", "F_OFD_GETLK"],
    socket: ["AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "SO_PEERCRED", "SO_PASSCRED", "SO_MARK",
             "SO_BINDTODEVICE",
             "SO_DOMAIN", "SO_PROTOCOL", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_CMSG_CLOEXEC", "SCM_CREDENTIALS",
             "TCP_USER_TIMEOUT", "TCP_DEFER_ACCEPT", "TCP_QUICKACK", "TCP_CORK", "IP_TRANSPARENT",
             "IP_BIND_ADDRESS_NO_PORT",
             "NETLINK_ROUTE"],
}.items():
    for name in names:
        for place in (module, _socket if module is socket else module, __import__("posix") if module is os else module):
            if hasattr(place, name):
                delattr(place, name)
sys.platform = PLATFORM
"""


@pytest.mark.parametrize("platform", ["darwin", "freebsd14"])
def test_every_module_imports(platform: str) -> None:
    names: list[str] = []
    for source in sorted(PACKAGES.glob("*/src/skep_*")):
        for path in sorted(source.rglob("*.py")):
            if path.name != "__main__.py":
                parts = path.relative_to(source.parent).with_suffix("").parts
                names.append(".".join(parts).removesuffix(".__init__"))
    assert len(names) > 100
    script = STRIPPED.replace("PLATFORM", repr(platform))
    script += f"\nfor name in {names!r}: importlib.import_module(name)\nprint('all')\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "all\n", done.stderr[-2000:]
