"""What each policy key means on macOS: enforced, enforced with a difference, or refused by name. None is ignored."""

from __future__ import annotations

from typing import Final

from skep_policy.boundary import Boundary
from skep_policy.enforcement import SAME_EVERYWHERE, Key
from skep_policy.errors import PolicyError

KEYS: Final[dict[str, Key]] = {
    **SAME_EVERYWHERE,
    "filesystem.write": Key("enforced", "everything else is read-only"),
    "filesystem.protect": Key("enforced", "it is read-only, and the folders above it cannot be renamed"),
    "filesystem.hide": Key("enforced", "whatever is tried with it is not permitted"),
    "filesystem.grant": Key("enforced", "the path is left as it is outside"),
    "filesystem.read": Key(
        "differs",
        'with "minimal" a fixed set of system folders stays readable, and what folders and links there are can be seen',
    ),
    "filesystem.git": Key("enforced", "config and hooks stay read-only, the rest of .git can be written"),
    "filesystem.devices": Key("differs", "a file below /dev, and no other kind of device (no GPU)"),
    "filesystem.sockets": Key("enforced", "every other one outside the writable folders is closed to the worker"),
    "network.allow": Key(
        "differs",
        "by the proxy alone: a program that ignores the proxy settings reaches nothing. localhost:PORT is reached "
        "directly, on the machine's own loopback; a server inside cannot listen",
    ),
    "env.pass": Key("enforced", "DYLD_* are refused, as they change which code programs load"),
    "env.set": Key("enforced", "DYLD_* are refused, as they change which code programs load"),
    "limits.memory": Key("refused", "macOS has no limit on the memory of a process tree"),
    "limits.processes": Key("differs", "that many more processes of this user than were running, whoever starts them"),
    "limits.file-size": Key("enforced", "by the kernel, for each file; for those that output goes to as well"),
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
