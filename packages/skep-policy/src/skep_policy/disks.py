"""What is to be left of the file systems a worker writes on, so that it fills no disk."""

from __future__ import annotations

import os

from .boundary import RESERVE, Boundary
from .errors import PolicyError
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FILE = 64 << 10
"""Bytes a file is taken for, where what is to be left is counted in files."""
NO_DISK = "no file system below the writable roots says how much is left of it"
"""Why a launch is not held to that."""


class Disk(Value):
    """The file system of a path of the host, and the bytes and files that are to be left of it."""

    path: str
    size: int
    files: int


def disks(boundary: Boundary, host: Callable[[str], str] = lambda path: path) -> list[Disk]:
    """The file systems below the writable roots that say how much is left of them, each once. `host` gives the host's
    path of what the worker sees at a path.

    What is to be left is what the policy says. Where it says nothing, it is RESERVE, or half of what is left now where
    that is less: so a small or a full disk refuses no launch, and no launch uses up what it finds.

    Raises PolicyError when less is left than the policy says.
    """
    found: dict[int, Disk] = {}
    wanted = boundary.limits.disk_free
    for path in _written(boundary, host):
        try:
            device = os.stat(path).st_dev
            info = os.statvfs(path)
        except OSError:
            continue  # and the launch says why
        if not info.f_blocks or device in found:
            continue
        left = info.f_bavail * info.f_frsize
        if wanted is not None and left < wanted:
            raise PolicyError(
                f"{path} has {left >> 20}MiB left, and {wanted >> 20}MiB are to be left; make room there, or lower it "
                "with --disk-free",
                key="limits.disk-free",
            )
        size = min(RESERVE, left // 2) if wanted is None else wanted
        found[device] = Disk(path, size, min(size // FILE, info.f_favail // 2))
    return list(found.values())


def _written(boundary: Boundary, host: Callable[[str], str]) -> Iterator[str]:
    """Folders of the host on which what the worker writes ends up."""
    for root in boundary.roots:
        overlay = boundary.overlays.get(root.path)
        yield overlay.upper if overlay else host(root.path)
