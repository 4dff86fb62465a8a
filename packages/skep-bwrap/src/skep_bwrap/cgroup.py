"""Limits of a whole sandbox, where the host lets us make a cgroup: version 1 hierarchies, or version 2 in a folder that
is ours and hands its controllers down.

Version 2 does not let a cgroup with processes hand controllers down (cgroup-v2.rst, "no internal processes"), so the
cgroup of a sandbox usually stands beside the caller's own, as the manager of a systemd user session allows. What the
caller's own is held to would be lost there: the number of processes, which systemd gives every unit, is carried over,
and where it carries other limits nothing is made beside it.
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
    wanted = settings(limits, version)[controller]
    folder = ""
    try:
        if version == 1:
            parent = found[controller]
        else:
            parent = _dividable(found.get(""), controller)
            if parent != found[""]:
                wanted = _carried(found[""], wanted)
        folder = f"{parent}/{name}"
        _make(folder, wanted)
    except Undivided as error:
        return f"no {controller} cgroup is ours to divide: {error}{advice(os.geteuid())}"
    except OSError as error:
        if folder not in made:
            _remove(folder)
        problem = f"{os.path.dirname(folder)}: {error.strerror}"
        return f"no {controller} cgroup is ours to divide: {problem}{advice(os.geteuid())}"
    made[folder] = (*made.get(folder, ()), *wanted)
    sweep([parent])
    return True


class Undivided(Exception):
    """Why no cgroup can be made."""


LOST = ("memory.max", "memory.high", "cpu.max")
"""Limits that are not carried over to a cgroup beside the one that has them."""


def _dividable(own: str | None, controller: str) -> str:
    """The caller's own cgroup or the one above it, whichever hands the controller down. Raises Undivided."""
    if own is None:
        raise Undivided("none is mounted here")
    if controller in _words(f"{own}/cgroup.subtree_control"):
        return _writable(own)
    for file in LOST:
        if _words(f"{own}/{file}")[:1] not in ([], ["max"]):
            raise Undivided(f"beside {own}, its {file} would be lost")
    above = os.path.dirname(own)
    handed = _words(f"{above}/cgroup.subtree_control")
    if controller not in handed and controller in _words(f"{above}/cgroup.controllers") and _given(above):
        try:
            with open(f"{above}/cgroup.subtree_control", "w") as control:
                control.write(f"+{controller}")
        except OSError as error:
            raise Undivided(f"{above} has processes and can hand nothing down ({error.strerror})") from None
        handed.append(controller)
    if controller not in handed:
        raise Undivided(f"{own} has processes and can hand nothing down, and above it nobody hands down {controller}")
    return _writable(above)


def _writable(folder: str) -> str:
    if not os.access(f"{folder}/cgroup.procs", os.W_OK):
        raise Undivided(f"{folder} belongs to others")
    return folder


def _given(folder: str) -> bool:
    """Was the folder given to this user? Root may write all of them, and others manage most."""
    return os.geteuid() != 0 and os.stat(folder).st_uid == os.geteuid()


def _carried(own: str, wanted: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What is to be written beside a cgroup, for its number of processes to hold there too."""
    held = _words(f"{own}/pids.max")
    if held in ([], ["max"]):
        return wanted
    asked = dict(wanted).get("pids.max")
    most = held[0] if asked is None else str(min(int(held[0]), int(asked)))
    return [*(pair for pair in wanted if pair[0] != "pids.max"), ("pids.max", most)]


def advice(uid: int) -> str:
    """How to be given a cgroup, where systemd would."""
    user, everyone = f"/run/user/{uid}/systemd/private", "/run/systemd/private"
    found = "--user " if os.path.exists(user) else "" if uid == 0 and os.path.exists(everyone) else None
    return "" if found is None else f"; `systemd-run {found}--scope -p Delegate=yes skep ...` gives it one"


def _words(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except OSError:
        return []


def _make(folder: str, wanted: Iterable[tuple[str, str]]) -> None:
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
