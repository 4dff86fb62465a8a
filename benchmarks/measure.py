"""Times of programs, and what processes cost: CPU seconds and proportional memory of a process with its descendants."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

TICK = 1 / os.sysconf("SC_CLK_TCK")

SILENCE = ((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0))


class Broken(Exception):
    """A candidate did not do what it was started for; the text says what it said or did."""


class Cost(NamedTuple):
    """Seconds on the clock and of CPU, the latter with every process that was waited for."""

    wall: float
    cpu: float


PR_SET_CHILD_SUBREAPER = 36
LINGERING = 1000
"""Milliseconds for what a program has left behind to end."""


def adopt_orphans() -> None:
    """Processes that a program leaves to nobody are ours from now on: bwrap never waits for the pid 1 it makes."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "child subreaper")


def cost_of(argv: Sequence[str], environ: Mapping[str, str], *, log: str, orphans: bool = False) -> Cost:
    """From posix_spawn to the end of a program that succeeds. `log` is a file for its errors. With `orphans` (see
    `adopt_orphans`; no other thread may start programs meanwhile) the CPU is that of all it has started. Raises Broken.
    """
    before = set(children(os.getpid())) if orphans else set[int]()
    errors = (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    began = time.perf_counter()
    pid = os.posix_spawn(argv[0], list(argv), environ, file_actions=[*SILENCE, errors])
    _, status, used = os.wait4(pid, 0)
    took = time.perf_counter() - began
    if status != 0:
        raise Broken(f"{os.waitstatus_to_exitcode(status)}: {first_line(log)}")
    cpu = used.ru_utime + used.ru_stime
    if orphans:
        cpu += sum(_cpu_of_orphan(orphan) for orphan in children(os.getpid()) if orphan not in before)
    return Cost(took, cpu)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(child) for child in file.read().split()]
    return found


def _cpu_of_orphan(pid: int) -> float:
    """Seconds; none of one that goes on."""
    watched = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        if not poll.poll(LINGERING):
            return 0.0
    finally:
        os.close(watched)
    _, _, used = os.wait4(pid, 0)
    return used.ru_utime + used.ru_stime


def first_line(path: str) -> str:
    """Of a text file; empty when it has none."""
    with open(path, errors="replace") as file:
        return file.readline(300).strip()


def interleaved(
    actions: Mapping[str, Callable[[], Cost]], rounds: int, *, seconds: float
) -> tuple[dict[str, list[Cost]], dict[str, str]]:
    """Every action once a round, so that what the machine does meanwhile meets all alike; at most `seconds` long in
    all, but each at least once. Also: what went wrong, for those that raised Broken. The first round is not counted;
    who fails there is left out.
    """
    found: dict[str, list[Cost]] = {}
    broken: dict[str, str] = {}
    for name, action in actions.items():
        try:
            action()
            found[name] = []
        except Broken as problem:
            broken[name] = str(problem)
    end = time.monotonic() + seconds
    for number in range(rounds):
        if number and time.monotonic() > end:
            break
        for name, costs in found.items():
            try:
                costs.append(actions[name]())
            except Broken as problem:
                broken[name] = str(problem)
    found = {name: costs for name, costs in found.items() if costs}
    return found, broken


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def descendants(pid: int) -> list[int]:
    """The process and all below it, parents first; those that are gone are left out."""
    found = [pid]
    for parent in found:
        try:
            found += children(parent)
        except OSError:
            continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process, its descendants, and the children they have waited for."""
    total = 0
    for one in descendants(pid):
        try:
            with open(f"/proc/{one}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15])  # utime stime cutime cstime, proc(5)
    return total * TICK


def pss(pids: Sequence[int]) -> int:
    """Bytes of memory, what is shared divided among those who share it."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += next((int(line.split()[1]) for line in file if line.startswith("Pss:")), 0)
        except OSError:
            continue
    return total * 1024


def end(pid: int, *, patience: float = 5.0) -> None:
    """A child of ours and all below it are gone: SIGTERM to it, and after `patience` seconds SIGKILL to each."""
    below = descendants(pid)
    try:
        _kill(pid, signal.SIGTERM)
        limit = time.monotonic() + patience
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                _kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    except ChildProcessError:
        pass  # it has been waited for: it ended by itself
    for one in below[1:]:
        if _is_below(one, below):
            _kill(one, signal.SIGKILL)


def _is_below(pid: int, family: Sequence[int]) -> bool:
    """Still a process of that family, adopted or not: its number was not given to another since."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent in family or parent == 1


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
