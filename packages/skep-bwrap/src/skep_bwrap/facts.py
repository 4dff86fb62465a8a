"""What `compile` must know of the host, gathered once and handed in, so that a user's failing host can be replayed
in a test.
"""

from __future__ import annotations

import os
import stat
import sys

from skep_netshim import SHIM, compiled
from skep_policy.facts import own_code
from skep_policy.value import Value

from .mountinfo import Mount, parse
from .sockets import census, pipes, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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

# Readable or writable for uid 0 of the host although it has no capability: the kernel's memory, keys, and the knobs
# and logs of its tracing. An ordinary user is kept out by the kernel.
ROOT_FILES = (
    *("/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/timer_list", "/proc/sched_debug"),
    *("/proc/latency_stats", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/kpagecount", "/proc/kpageflags"),
    "/proc/kpagecgroup",
)
ROOT_FOLDERS = (
    *("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/fs/bpf", "/sys/fs/pstore"),
    "/sys/firmware",
)
# ssh reads them only when they belong to root or to the caller; in the worker's user namespace, root's are nobody's.
SSH_FOLDER = "/etc/ssh/ssh_config.d"
SSH_INCLUDED = ("/etc/crypto-policies/back-ends/openssh.config",)
SSH_MOST = 32  # files
SSH_LARGEST = 1 << 16  # bytes of one
PRIVATE = ("/tmp", "/var/tmp", "/run", "/var/run")
DEVICE_FOLDERS = ("/dev", "/dev/pts", "/dev/shm")


class HostFacts(Value):
    """`interpreter` and `prefix` are where the shim's Python really is, `shim` its source or its bytecode, `code` what
    the caller runs from (`skep_policy.facts.own_code`); `namespaces` maps a name to the host's `/proc/self/ns` link.

    `links` are top-level links such as `/bin -> usr/bin`; `run_kept`, `root_files` and `root_folders` the entries of
    RUN_KEPT, ROOT_FILES and ROOT_FOLDERS that exist; `private` the real folders of PRIVATE; `resolv_conf` and `hosts`
    are those files with links resolved, None when absent. `ssh` has the content of ssh's included system files, by path
    with links resolved.
    `pipes` are named pipes that somebody has open, `lost` names of sockets that could not be found. `devices` are the
    device numbers (st_dev) of DEVICE_FOLDERS and PRIVATE. `machine` is `uname -m`.
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
    private: tuple[str, ...] = ("/tmp", "/var/tmp", "/run")
    root_files: tuple[str, ...] = ()
    root_folders: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    code: tuple[str, ...] = ()
    ssh: dict[str, bytes] = {}
    pipes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()

    @classmethod
    def gather(cls) -> HostFacts:
        """Read the host. Takes a millisecond or less; nothing is cached, since sockets come and go."""
        uname = os.uname()
        with open("/proc/self/mountinfo", errors="surrogateescape", newline="\n") as table:
            mounts = parse(table.read())
        pids = processes()
        found = census(mounts, pids)
        own: dict[str, str] = {}
        for name in NAMESPACES:
            try:
                own[name] = os.readlink(f"/proc/self/ns/{name}")
            except OSError:
                continue
        interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
        return cls(
            interpreter=interpreter,
            prefix=os.path.realpath(sys.base_prefix),
            shim=os.path.realpath(runnable(SHIM, interpreter)),
            machine=uname.machine,
            hostname=uname.nodename,
            namespaces=own,
            sockets=found.sockets,
            lost=found.lost,
            pipes=tuple(pipes(pids)),
            run_kept=tuple(path for path in RUN_KEPT if os.path.exists(path)),
            links={f"/{name}": os.readlink(f"/{name}") for name in os.listdir("/") if os.path.islink(f"/{name}")},
            resolv_conf=_real_file("/etc/resolv.conf"),
            hosts=_real_file("/etc/hosts"),
            private=tuple(dict.fromkeys(real for path in PRIVATE if os.path.isdir(real := os.path.realpath(path)))),
            root_files=tuple(path for path in ROOT_FILES if os.path.exists(path)),
            root_folders=tuple(path for path in ROOT_FOLDERS if os.path.isdir(path)),
            mounts=mounts,
            code=own_code(),
            ssh=_ssh(),
            devices=tuple(os.stat(path).st_dev for path in (*DEVICE_FOLDERS, *PRIVATE) if os.path.isdir(path)),
        )


def _ssh() -> dict[str, bytes]:
    try:
        names = sorted(name for name in os.listdir(SSH_FOLDER) if name.endswith(".conf"))
    except OSError:
        names = []
    found: dict[str, bytes] = {}
    for path in (*(f"{SSH_FOLDER}/{name}" for name in names), *SSH_INCLUDED):
        real = _real_file(path)
        if real is None or len(found) >= SSH_MOST:
            continue
        try:
            with open(real, "rb") as file:
                content = file.read(SSH_LARGEST + 1)
        except OSError:
            continue
        if len(content) <= SSH_LARGEST:
            found[real] = content
    return found


def runnable(source: str, interpreter: str) -> str:
    """A program's bytecode when the interpreter that is to run it is this very one, which has made or checked it; else
    its source.
    """
    try:
        same = os.path.samestat(os.stat(interpreter), os.stat("/proc/self/exe"))
    except OSError:
        same = False
    return (compiled(source) if same else None) or source


def _real_file(path: str) -> str | None:
    real = os.path.realpath(path)
    try:
        return real if stat.S_ISREG(os.stat(real).st_mode) else None
    except OSError:
        return None


def sysctls(names: Iterable[str]) -> dict[str, str]:
    """Their values, of those this kernel has."""
    found: dict[str, str] = {}
    for name in names:
        try:
            with open("/proc/sys/" + name.replace(".", "/")) as value:
                found[name] = value.read().strip()
        except OSError:
            continue
    return found
