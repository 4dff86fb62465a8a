"""The folders a worker has to itself (`/tmp` is one): what stands there on this machine is not what it finds.

Asked of the compiled boundary, so that nothing here has an opinion of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from skep_policy.boundary import Boundary, below

TOLD = 5
"""Paths of one command line that are told of."""


def own_folder(boundary: Boundary, path: str) -> str | None:
    """The folder of the worker's own that covers an absolute path without links; None where the host's is what it
    finds.
    """
    if not sys.platform.startswith("linux"):
        return None
    from skep_bwrap.facts import HostFacts
    from skep_bwrap.mounts import filesystem_ops
    from skep_bwrap.ops import origin
    from skep_netshim.shim import USUAL_DEVICES

    host = HostFacts.gather()
    folder = next((folder for folder in (*host.private, "/dev/shm", "/dev/pts", "/dev") if below(path, folder)), None)
    if folder is None or origin(filesystem_ops(boundary, host, own_names=False), path) is not None:
        return None
    if folder == "/dev" and (path == folder or os.fsencode(path.split("/")[2]) in USUAL_DEVICES):
        return None
    return folder


def unseen(boundary: Boundary, command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """A line for each file of this machine that a command names, or is, and that the worker will not find for that
    reason.
    """
    program = command[0]
    found = shutil.which(program, path=environ.get("PATH")) if program and "/" not in program else None
    named = [word for text in command for word in text.replace("=", " ").split() if word.startswith("/")]
    lines: dict[str, None] = {}
    for path in (*([found] if found else []), *named):
        real = os.path.realpath(path)
        # Nothing is compiled for the many paths that are none of these.
        if not real.startswith(("/tmp/", "/var/tmp/", "/run/")) or not os.path.lexists(real):
            continue
        if folder := own_folder(boundary, real):
            line = f"{path} is not in the sandbox: the worker has a {folder} of its own; --write {path} lets it in"
            lines[line] = None
    return list(lines)[:TOLD]
