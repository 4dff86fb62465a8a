"""What a guardian that was killed has left: found by what it holds and where it is, and ended."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
else:
    import _signal as signal  # the module around it imports enum

MAX_DYING = 10.0
"""Seconds. A pid that was taken again meanwhile shall not be waited for."""


def end_holders(pipe: int, known: set[int]) -> None:
    """No process has the other end of the pipe as its standard error: what a guardian that was killed has left. A pid 1
    among them has taken all of its namespace with it. `known` are awaited too: one that is dying holds nothing already.
    """
    name = os.readlink(f"/proc/self/fd/{pipe}")
    holders = set(known)
    end = time.monotonic() + MAX_DYING
    while True:
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.readlink(f"/proc/{entry}/fd/2") == name:
                    holders.add(int(entry))
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
        holders = {pid for pid in holders if _lives(pid)}
        if not holders or time.monotonic() > end:
            return
        time.sleep(0.005)


def end_members(cgroups: Sequence[str]) -> None:
    """No process is in the cgroups of a launch, which are gone. A guardian does that, unless it was killed; the kernel
    counts a process that dies a while longer than /proc shows it.
    """
    end = time.monotonic() + MAX_DYING
    for folder in cgroups:
        while not _removed(folder) and time.monotonic() < end:
            time.sleep(0.005)


def _removed(cgroup: str) -> bool:
    for folder, _, _ in os.walk(cgroup, topdown=False):  # a worker may have divided it
        try:
            with open(folder + "/cgroup.procs") as members:
                for pid in members:
                    os.kill(int(pid), signal.SIGKILL)
            os.rmdir(folder)
        except OSError:
            continue
    return not os.path.exists(cgroup)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
