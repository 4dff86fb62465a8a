"""The host's mount table, for what one path does not tell: the same file may stand at several. Pure."""

from __future__ import annotations

from skep_policy.value import Value

from .ops import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REMOTE = frozenset({"autofs", "cifs", "smb3", "nfs", "nfs4", "9p", "afs", "ceph", "lustre"})
"""File systems whose server may be dead: what stands at their mount point is never asked for."""


class Mount(Value):
    """One line of mountinfo: the folder or file `root` of the file system `device` stands at `point`. `kind` is the
    file system's type.
    """

    device: str
    root: str
    point: str
    kind: str


def parse(table: str) -> tuple[Mount, ...]:
    """The mounts of /proc/self/mountinfo, in the order they were made."""
    found: list[Mount] = []
    for line in table.split("\n"):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) >= 6:
            found.append(Mount(fields[2], unescape(fields[3]), unescape(fields[4]), after.partition(" ")[0]))
    return tuple(found)


def unescape(text: str) -> str:
    """Octal escapes of the kernel's seq_file undone."""
    first, *rest = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def standing_at(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that a path is on: the deepest one, and of those the last."""
    best: Mount | None = None
    for mount in mounts:
        if below(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def aliases(mounts: Sequence[Mount], path: str) -> list[str]:
    """Every other path at which the file of `path` stands, through bind mounts and file systems mounted twice."""
    own = standing_at(mounts, path)
    if own is None:
        return []
    same = [mount for mount in mounts if mount.device == own.device and mount is not own]
    inside = own.root.rstrip("/") + path[len(own.point.rstrip("/")) :]
    found: set[str] = set()
    for mount in same:
        if below(inside, mount.root):
            other = mount.point.rstrip("/") + inside[len(mount.root.rstrip("/")) :]
            if other != path and standing_at(mounts, other) is mount:
                found.add(other)
    return sorted(found)


def translated(path: str, theirs: Sequence[Mount], ours: Sequence[Mount]) -> list[str]:
    """Where what stands at a path of one mount namespace stands in another."""
    mount = standing_at(theirs, path)
    if mount is None:
        return []
    inside = mount.root.rstrip("/") + path[len(mount.point.rstrip("/")) :]
    return [
        other.point.rstrip("/") + inside[len(other.root.rstrip("/")) :]
        for other in ours
        if other.device == mount.device and below(inside, other.root)
    ]


def single_files(mounts: Sequence[Mount]) -> list[str]:
    """Mount points that may be one file, such as a socket mounted into a container. Dead servers are left alone."""
    return [
        mount.point
        for mount in mounts
        if mount.root != "/" and mount.kind not in REMOTE and not mount.kind.startswith("fuse")
    ]
