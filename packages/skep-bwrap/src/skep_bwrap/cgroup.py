"""Limits of a whole sandbox, where the host lets us make a cgroup: version 1 hierarchies, or a delegated version 2
one.
"""

from __future__ import annotations

import os

import msgspec
from skep_policy.boundary import Limits


class Held(msgspec.Struct, frozen=True):
    """Cgroups made for one sandbox, and which limits they hold (`layers`: True, or why not)."""

    folders: tuple[str, ...]
    layers: dict[str, bool | str]


def hierarchies(mountinfo: str, own: str) -> dict[str, str]:
    """Folder of the caller's own cgroup per controller; `""` is the version 2 hierarchy. From mountinfo and
    /proc/self/cgroup.
    """
    mounts: dict[str, str] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] == "cgroup2":
            mounts[""] = fields[4]
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                mounts.setdefault(option, fields[4])
    found: dict[str, str] = {}
    for line in own.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts:
                found[name] = mounts[name] + path.rstrip("/")
    return found


def settings(limits: Limits, version: int) -> dict[str, list[tuple[str, str]]]:
    """Per controller, the files to write and what, in order."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    if limits.processes is not None:
        wanted["pids"] = [("pids.max", str(limits.processes))]
    if limits.memory is not None:
        if version == 1:
            wanted["memory"] = [("memory.limit_in_bytes", str(limits.memory))]
        else:
            wanted["memory"] = [("memory.max", str(limits.memory)), ("memory.swap.max", "0"), ("memory.oom.group", "1")]
    return wanted


def hold(limits: Limits, name: str) -> Held:
    """Make cgroups called `name` that hold what can be held of the limits. Nothing is made when nothing is asked
    for.
    """
    asked = {"processes": limits.processes is not None, "memory": limits.memory is not None}
    layers: dict[str, bool | str] = dict.fromkeys(asked, False)
    if not any(asked.values()):
        return Held((), layers)
    with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
        found = hierarchies(mounts.read(), own.read())
    folders: list[str] = []
    for layer, controller in (("processes", "pids"), ("memory", "memory")):
        if asked[layer]:
            layers[layer] = _hold_one(controller, limits, name, found, folders)
    return Held(tuple(folders), layers)


def _hold_one(controller: str, limits: Limits, name: str, found: dict[str, str], folders: list[str]) -> bool | str:
    version = 1 if controller in found else 2
    parent = found.get(controller) or found.get("")
    if parent is None:
        return f"no {controller} cgroup is mounted"
    folder = f"{parent}/{name}"
    try:
        if folder not in folders:
            os.mkdir(folder)
            folders.append(folder)
        for file, value in settings(limits, version)[controller]:
            try:
                with open(f"{folder}/{file}", "w") as knob:
                    knob.write(value)
            except FileNotFoundError:
                if file in ("pids.max", "memory.max", "memory.limit_in_bytes"):
                    raise
    except OSError as error:
        return f"the {controller} cgroup of this host is not ours to divide ({error.strerror})"
    return True


def release(held: Held) -> None:
    """Remove cgroups that no guardian has taken over."""
    for folder in held.folders:
        try:
            os.rmdir(folder)
        except OSError:
            continue
