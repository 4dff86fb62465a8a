"""The folders a worker has to itself (`/tmp` and `/dev` are such): what stands there on this machine is not what it
finds.

Asked of the compiled boundary, so that nothing here has an opinion of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from skep_policy.boundary import Boundary

TOLD = 5
"""Paths of one command line that are told of."""


class Own(NamedTuple):
    """What the worker meets where it has something of its own: `folder` is that, `access` as in an explanation."""

    folder: str
    access: Literal["write", "read", "hidden"]
    reason: str


def own(boundary: Boundary, path: str) -> Own | None:
    """What the worker meets at an absolute path whose folder has no links in it; None where that is the host's. What
    stands on this machine in such a folder is hidden, whatever it is.
    """
    if not sys.platform.startswith("linux"):
        return None
    from skep_bwrap.facts import HostFacts
    from skep_bwrap.mounts import filesystem_ops
    from skep_bwrap.ops import Bind, Dev, Proc, Tmpfs, standing

    match standing(filesystem_ops(boundary, HostFacts.gather(), own_names=False), path):
        case Proc(folder):
            return _in_proc(path, folder)
        case Dev(folder):
            return _in_dev(path, folder)
        case Tmpfs(folder, 0o111 | 0):
            return Own(folder, "hidden", f"{folder} is closed to a worker of root's")
        case Tmpfs(folder):
            reason = f"the worker has a {folder} of its own"
            if path != folder and os.path.lexists(path):
                return Own(folder, "hidden", f"{reason}; --write lets it in")
            return Own(folder, "read" if folder.endswith("/run") else "write", reason)
        case Bind("/dev/null", dest):
            return Own(dest, "hidden", f"{dest} is closed to a worker of root's")
        case _:
            return None


def _in_proc(path: str, folder: str) -> Own:
    process = path[len(folder) :].split("/")[1:2]
    if process and process[0].isdigit() and process != [str(os.getpid())]:  # ours is where /proc/self leads
        return Own(folder, "hidden", f"the worker has a {folder} of its own, with its own processes alone")
    return Own(folder, "read", f"the worker has a {folder} of its own, with what the kernel shows to it")


def _in_dev(path: str, folder: str) -> Own | None:
    from skep_netshim.shim import USUAL_DEVICES

    reason = f"the worker has a {folder} of its own"
    name, _, rest = path[len(folder) + 1 :].partition("/")
    usual = not name or os.fsencode(name) in USUAL_DEVICES
    if name == "core" or (name == "fd" and rest):
        return None  # links: where they lead decides
    if name == "console":
        return Own(folder, "hidden", f"{reason}, and a console in it only where its output is a terminal")
    if usual and (not rest or (name, rest) == ("pts", "ptmx")):
        return Own(folder, "read", reason)
    return Own(folder, "hidden", f"{reason}; --device lets it in")


def unseen(boundary: Boundary, command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A line for each file of this machine that a command names, or is, and that the worker will not find for that
    reason.
    """
    program = command[0]
    there = shutil.which(program, path=environ.get("PATH")) if program and "/" not in program else None
    named = [word for text in command for word in text.replace("=", " ").split() if word.startswith("/")]
    lines: dict[str, None] = {}
    for path in (*([there] if there else []), *named):
        real = os.path.realpath(path)
        # Nothing is compiled for the many paths that are none of these.
        if not real.startswith(("/tmp/", "/var/tmp/", "/run/")) or not os.path.lexists(real):
            continue
        found = own(boundary, real)
        if found is not None and found.access == "hidden":
            line = (
                f"{path} is not in the sandbox: the worker has a {found.folder} of its own; --write {path} lets it in"
            )
            lines[line] = None
    return list(lines)[:TOLD]
