"""Processes as /proc shows them. Of one that is gone: dead, without a program, without words."""

from __future__ import annotations

import os
import time
from pathlib import Path


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        except OSError:
            continue  # a thread that has ended, and left its children to the others
    return found


def tree_of(pid: int) -> list[int]:
    return [pid, *(below for child in children(pid) for below in tree_of(child))]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def program(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def wchan(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""


def sits(pid: int) -> bool:
    """Whether a process sleeps, and still does after others could run."""
    if not pid or state(pid) != "S":
        return False
    before = Path(f"/proc/{pid}/status").read_text()
    for _ in range(5):
        time.sleep(0.004)
    try:
        return Path(f"/proc/{pid}/status").read_text() == before
    except OSError:
        return False


def waits_at(pid: int, stage: str) -> bool:
    """Whether the process is the one that waits at that gate, or the child of the one that does."""
    if not pid:
        return False
    expected = ("git", "sh", "dash", "bash", "busybox") if stage in ("git", "exec") else ("bwrap",)
    return program(pid).endswith(expected) and sits(pid)
