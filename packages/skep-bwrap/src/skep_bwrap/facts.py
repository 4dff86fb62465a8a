"""What `compile` must know of the host, gathered once and handed in, so that a user's failing host can be replayed
in a test.
"""

from __future__ import annotations

import os
import stat
import sys

import msgspec
from skep_netshim import SHIM

from .sockets import census

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")

# Below /run, what name resolution and distributions need. The rest of /run is where daemons listen.
RUN_KEPT = (
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/resolvconf/resolv.conf",
    "/run/current-system",
    "/run/opengl-driver",
    "/run/ostree",
    "/run/host/fonts",
)


class HostFacts(msgspec.Struct, frozen=True):
    """`interpreter` and `prefix` are where the shim's Python really is; `namespaces` maps a name to the host's
    `/proc/self/ns` link.

    `links` are top-level links such as `/bin -> usr/bin`; `run_kept` the entries of RUN_KEPT that exist;
    `resolv_conf` and `hosts` are those files with links resolved, None when absent. `machine` is `uname -m`.
    """

    interpreter: str
    prefix: str
    shim: str
    machine: str
    hostname: str
    namespaces: dict[str, str]
    sockets: tuple[str, ...]
    run_kept: tuple[str, ...]
    links: dict[str, str]
    resolv_conf: str | None
    hosts: str | None
    var_tmp: bool = True

    @classmethod
    def gather(cls) -> HostFacts:
        """Read the host. Takes a millisecond or less; nothing is cached, since sockets come and go."""
        uname = os.uname()
        own: dict[str, str] = {}
        for name in NAMESPACES:
            try:
                own[name] = os.readlink(f"/proc/self/ns/{name}")
            except OSError:
                continue
        return cls(
            interpreter=os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable),
            prefix=os.path.realpath(sys.base_prefix),
            shim=os.path.realpath(SHIM),
            machine=uname.machine,
            hostname=uname.nodename,
            namespaces=own,
            sockets=tuple(census()),
            run_kept=tuple(path for path in RUN_KEPT if os.path.exists(path)),
            links={f"/{name}": os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")},
            resolv_conf=_real_file("/etc/resolv.conf"),
            hosts=_real_file("/etc/hosts"),
            var_tmp=os.path.isdir("/var/tmp") and not os.path.islink("/var/tmp"),
        )


def _real_file(path: str) -> str | None:
    real = os.path.realpath(path)
    try:
        return real if stat.S_ISREG(os.stat(real).st_mode) else None
    except OSError:
        return None
