"""Limits of a whole sandbox, where the host lets us make a cgroup: version 1 hierarchies, or version 2 in a folder that
is ours and hands its controllers down.

Version 2 does not let a cgroup with processes hand controllers down (cgroup-v2.rst, "no internal processes"), so the
cgroup of a sandbox usually stands beside the caller's own, as the manager of a systemd user session allows. It does not
when the caller's own carries limits: beside it, they would be lost.
"""

from __future__ import annotations

import os

from skep_policy.boundary import Limits
from skep_policy.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Held(Value):
    """Cgroups made for one sandbox with the files written in each, and which limits they hold (`layers`: True, False
    for not asked, or why not).
    """

    made: dict[str, tuple[tuple[str, str], ...]]
    layers: dict[str, bool | str]

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(self.made)


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


NEEDED = ("pids.max", "memory.max", "memory.limit_in_bytes")
"""Files that must be there; the others make the limit closer."""


def hold(limits: Limits, name: str) -> Held:
    """Make cgroups called `name` that hold what can be held of the limits. Nothing is made when nothing is asked
    for.
    """
    asked = {"processes": limits.processes is not None, "memory": limits.memory is not None}
    layers: dict[str, bool | str] = dict.fromkeys(asked, False)
    if not any(asked.values()):
        return Held({}, layers)
    with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
        found = hierarchies(mounts.read(), own.read())
    made: dict[str, tuple[tuple[str, str], ...]] = {}
    for layer, controller in (("processes", "pids"), ("memory", "memory")):
        if asked[layer]:
            layers[layer] = _hold_one(controller, limits, name, found, made)
    return Held(made, layers)


def _hold_one(
    controller: str, limits: Limits, name: str, found: dict[str, str], made: dict[str, tuple[tuple[str, str], ...]]
) -> bool | str:
    version = 1 if controller in found else 2
    parent = found[controller] if version == 1 else _dividable(found.get(""), controller)
    if parent is None:
        return f"no {controller} cgroup of this host is ours to divide"
    folder = f"{parent}/{name}"
    wanted = tuple(settings(limits, version)[controller])
    try:
        _make(folder, wanted)
    except OSError as error:
        if folder not in made:
            _remove(folder)
        return f"the {controller} cgroup of this host is not ours to divide ({error.strerror})"
    made[folder] = made.get(folder, ()) + wanted
    sweep([parent])
    return True


def _dividable(own: str | None, controller: str) -> str | None:
    """The caller's own cgroup or the one above it, whichever hands the controller down to a new one."""
    if own is None:
        return None
    for folder in (own, os.path.dirname(own)):
        if controller in _words(f"{folder}/cgroup.subtree_control"):
            return folder if os.access(f"{folder}/cgroup.procs", os.W_OK) else None
        if any(_words(f"{folder}/{file}") not in ([], ["max"]) for file in ("memory.max", "pids.max")):
            return None
    return None


def _words(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except OSError:
        return []


def _make(folder: str, wanted: tuple[tuple[str, str], ...]) -> None:
    try:
        os.mkdir(folder)
    except FileExistsError:
        pass  # one folder of version 2 holds both controllers
    for file, value in wanted:
        try:
            with open(f"{folder}/{file}", "w") as knob:
                knob.write(value)
        except FileNotFoundError:
            if file in NEEDED:
                raise


def renew(held: Held) -> None:
    """The cgroups are there again, after a first launch has taken them with it."""
    for folder, wanted in held.made.items():
        _make(folder, wanted)


def release(held: Held) -> None:
    """Remove cgroups that no guardian has taken over."""
    for folder in held.folders:
        _remove(folder)


def _remove(folder: str) -> None:
    """With what a worker has made in it, where the folder was its to divide."""
    found = [folder]
    for above in found:  # which grows meanwhile
        try:
            with os.scandir(above) as entries:
                found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
    for each in reversed(found):
        try:
            os.rmdir(each)
        except OSError:
            continue


def sweep(parents: Iterable[str]) -> None:
    """Remove empty cgroups of launches whose callers are gone, such as a guardian that was killed leaves."""
    for parent in set(parents):
        try:
            names = [name for name in os.listdir(parent) if name.startswith("skep-")]
        except OSError:
            continue
        for name in names:
            pid = name.split("-")[1]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                _remove(f"{parent}/{name}")
