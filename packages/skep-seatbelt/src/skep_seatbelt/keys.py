"""What each policy key means on macOS: enforced, enforced with a difference, or refused by name. None is ignored."""

from __future__ import annotations

from typing import Final

from skep_policy.boundary import Boundary
from skep_policy.enforcement import SAME_EVERYWHERE, Key
from skep_policy.errors import PolicyError

KEYS: Final[dict[str, Key]] = {
    **SAME_EVERYWHERE,
    "filesystem.write": Key("enforced", "file-write* below each root and nowhere else"),
    "filesystem.protect": Key("enforced", "file-write* denied, renames of the folders above it too"),
    "filesystem.hide": Key("enforced", "every file and socket operation denied with EPERM"),
    "filesystem.grant": Key("enforced", "one entry fewer is denied"),
    "filesystem.read": Key(
        "differs",
        '"minimal" keeps a fixed set of system folders readable, and folders and links anywhere can be stat-ed',
    ),
    "filesystem.git": Key("enforced", "by the paths it protects"),
    "filesystem.devices": Key("differs", "write and ioctl on the node; nothing that is not a node below /dev (no GPU)"),
    "filesystem.sockets": Key("enforced", "connect to that path"),
    "network.allow": Key(
        "differs",
        "by the proxy alone: a program that ignores the proxy settings reaches nothing. localhost:PORT is reached "
        "directly, on the machine's own loopback; a server inside cannot listen",
    ),
    "env.pass": Key("enforced", "DYLD_* are refused"),
    "env.set": Key("enforced", "DYLD_* are refused"),
    "limits.memory": Key("refused", "macOS has no limit on the memory of a process tree"),
    "limits.processes": Key(
        "differs", "RLIMIT_NPROC: that many more processes of this user than were running, whoever starts them"
    ),
    "limits.file-size": Key("enforced", "RLIMIT_FSIZE, and of files that output is relayed to"),
    "limits.disk-free": Key("enforced", "looked at ten times a second"),
    "setup.network": Key("differs", "as network.allow"),
    "verify.network": Key("differs", "as network.allow"),
}


class Unenforceable(PolicyError):
    """The boundary says something that macOS cannot hold. The worker is not started."""


def refuse(boundary: Boundary) -> None:
    """Returns when everything in the boundary can be enforced here. Raises Unenforceable naming the first key."""
    if boundary.limits.memory is not None:
        raise Unenforceable(
            "cannot be enforced on macOS, which has no limit on the memory of a process tree; leave it out here",
            key="limits.memory",
        )
    if boundary.mapped:
        path = min(boundary.mapped)
        raise Unenforceable(
            f"cannot show another folder at {path} on macOS; use a workspace by copy (--workspace copy)",
            key="workspace",
        )
    if boundary.uid == 0:
        raise Unenforceable("a profile does not hold a worker that is root; run as an ordinary user", key="uid")
    for device in boundary.devices:
        if not device.startswith("/dev/"):
            raise Unenforceable(
                f"{device} is not a node below /dev, and macOS has no other device to grant", key="filesystem.devices"
            )
    for name in boundary.env:
        if name.startswith("DYLD_"):
            raise Unenforceable(f"{name} changes which code every program loads; it cannot be set", key="env.set")
