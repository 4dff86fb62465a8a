"""What holds each limit of a boundary: a cgroup, the kernel process by process, or the guardian's looks (`watch`)."""

from __future__ import annotations

from skep_policy.boundary import Boundary
from skep_policy.disks import NO_DISK, disks

from .cgroup import Held
from .mounts import source_of


def watched(boundary: Boundary, held: Held) -> list[str]:
    """Records of `watch.Watch`, for what `held` cgroups do not hold.

    Raises PolicyError when less is left of a disk than the policy says.
    """
    limits, records = boundary.limits, list[str]()
    if limits.memory is not None and held.layers["memory"] is not True:
        records.append(f"memory {limits.memory}")
    if limits.processes is not None and held.layers["processes"] is not True:
        # RLIMIT_NPROC counts per user namespace since Linux 5.14 and does not bind root of the host (kernel/fork.c).
        records.append(f"processes{'-end' if boundary.uid == 0 else ''} {limits.processes}")
    left = disks(boundary, lambda path: source_of(path, boundary))
    return [*records, *(f"disk {disk.size} {disk.files} {disk.path}" for disk in left)]


def limit_layers(boundary: Boundary, held: Held, records: list[str]) -> dict[str, bool | str]:
    """Which limits are in force, by `held` cgroups, rlimits, and `records` the guardian looks after."""
    limits = boundary.limits
    cgroups = [answer for answer in held.layers.values() if answer is not False]
    found: dict[str, bool | str] = {
        "wall": limits.wall is not None,
        "file-size": limits.file_size is not None,
        "memory": limits.memory is not None,
        "processes": limits.processes is not None,
        "cgroup": next((answer for answer in cgroups if answer is not True), bool(cgroups)),
    }
    disk = any(record.startswith("disk ") for record in records)
    found["disk-free"] = disk or NO_DISK
    return found
