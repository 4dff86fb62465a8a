"""After a launch: what has appeared that was not there and that the host would act on by itself."""

from __future__ import annotations

import os

from skep_policy.boundary import Boundary
from skep_policy.report import Finding


def look_after(boundary: Boundary, quarantine: str) -> list[Finding]:
    """A finding for every watched path that has appeared. What git of the host would obey is moved to `quarantine`
    first.
    """
    findings: list[Finding] = []
    for watched in boundary.watched:
        path = host_path(watched.path, boundary)
        if not os.path.lexists(path):
            continue
        if not watched.quarantine:
            findings.append(Finding("appeared", watched.path, watched.reason))
            continue
        kept = put_away(path, quarantine)
        findings.append(Finding("quarantined", watched.path, f"{watched.reason}; moved to {kept}"))
    return findings


def host_path(path: str, boundary: Boundary) -> str:
    for seen, source in boundary.mapped.items():
        if path == seen or path.startswith(seen.rstrip("/") + "/"):
            return source + path[len(seen) :]
    return path


def put_away(path: str, quarantine: str) -> str:
    """The path is gone from where it was, without following it; returns where it is kept."""
    os.makedirs(quarantine, mode=0o700, exist_ok=True)
    number = 0
    while True:
        kept = os.path.join(quarantine, f"{number}-{os.path.basename(path)}")
        if not os.path.lexists(kept):
            break
        number += 1
    try:
        os.rename(path, kept)
    except OSError:  # another file system: nothing is copied of what nobody asked for
        import shutil

        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return "nowhere (another file system), and removed"
    return kept
