"""Reads how the kernel spells the paths of a boundary. `compile` knows nothing of the disk."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable

from skep_policy import replace
from skep_policy.boundary import Boundary, PathRule

O_EVTONLY = 0x8000
O_SYMLINK = 0x200000
"""fcntl.h of macOS: open for its name only, and the link itself."""

PATH_MAX = 1024

Spelling = Callable[[str], str]


def kernel_spelling(path: str) -> str:
    """`path` as the kernel reports it: the case and composition on the disk, no links. What is absent keeps its name
    below its deepest existing folder. The same path off macOS.
    """
    if sys.platform != "darwin":
        return path
    rest: list[str] = []
    current = path
    while True:
        try:
            fd = os.open(current, O_EVTONLY | os.O_CLOEXEC)
        except OSError:
            folder, name = os.path.split(current)
            if folder == current:
                return path
            rest.append(name)
            current = folder
            continue
        try:
            found = fcntl.fcntl(fd, fcntl.F_GETPATH, b"\0" * PATH_MAX).rstrip(b"\0")
        finally:
            os.close(fd)
        return os.path.join(os.fsdecode(found), *reversed(rest))


def settle(boundary: Boundary, *, spelling: Spelling = kernel_spelling) -> Boundary:
    """The boundary with every path as the kernel spells it. A rule about another spelling is dead, and a dead denial
    is open.
    """

    def rules(old: tuple[PathRule, ...]) -> tuple[PathRule, ...]:
        return tuple(replace(rule, path=spelling(rule.path)) for rule in old)

    return replace(
        boundary,
        workspace=spelling(boundary.workspace),
        cwd=spelling(boundary.cwd),
        home=spelling(boundary.home),
        roots=rules(boundary.roots),
        protects=rules(boundary.protects),
        hides=rules(boundary.hides),
        reads=rules(boundary.reads),
        watched=tuple(replace(one, path=spelling(one.path)) for one in boundary.watched),
        sockets=tuple(map(spelling, boundary.sockets)),
    )
