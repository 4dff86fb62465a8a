"""What each policy key means on Linux: enforced, or enforced with a limit that is said here. None is ignored."""

from __future__ import annotations

from typing import Final

from skep_policy.enforcement import SAME_EVERYWHERE, Key

KEYS: Final[dict[str, Key]] = {
    **SAME_EVERYWHERE,
    "filesystem.write": Key("enforced", "everything else is read-only"),
    "filesystem.protect": Key("enforced", "read-only wherever it lies in a writable folder"),
    "filesystem.hide": Key("enforced", "something empty that cannot be opened stands in its place"),
    "filesystem.grant": Key("enforced", "the path is left as it is outside"),
    "filesystem.read": Key("enforced", 'with "minimal" only the system, the workspace and what is listed is there'),
    "filesystem.git": Key("enforced", "config and hooks stay read-only, the rest of .git can be written"),
    "filesystem.devices": Key("enforced", "the worker's own /dev has it"),
    "filesystem.sockets": Key("enforced", "every other Unix socket is closed to the worker"),
    "network.allow": Key(
        "differs",
        "there is no other way out; a program that ignores the proxy settings reaches what is allowed where the kernel "
        "lets skep see to it, and nothing at all elsewhere (`skep doctor`, egress)",
    ),
    "env.pass": Key("enforced", "the worker sees no other variables but those of skep's own"),
    "env.set": Key("enforced", "the worker sees no other variables but those of skep's own"),
    "limits.memory": Key(
        "differs",
        "by the kernel for all processes together where this user may make cgroups; elsewhere the sum is looked at "
        "several times a second, and the kernel holds each process for itself",
    ),
    "limits.processes": Key(
        "differs",
        "by the kernel where this user may make cgroups or is not root; root's are counted several times a second",
    ),
    "limits.file-size": Key("enforced", "by the kernel, for each file; for those that output goes to as well"),
    "limits.disk-free": Key("enforced", "looked at several times a second, more often the less is left"),
    "setup.network": Key("differs", "as network.allow"),
    "verify.network": Key("differs", "as network.allow"),
}
