"""Single files of the host that are protected or hidden, and which of them lost their cover while the worker ran.

A mount lies over the file and not over the name. A program of the host that saves by renaming a new file over the old
one, as `git config` and most editors do, takes the cover away with the old one, and nobody can keep it from doing so.
So it is told. A file is held open meanwhile, since its number would be free for the new one otherwise.
"""

from __future__ import annotations

import os

from skep_policy.boundary import Boundary, below
from skep_policy.report import Finding

MAX_HELD = 64
"""Files held open; of the others a new one with the old one's number is not noticed."""


class Covers:
    """The files as they are before a launch. `lost` once, after it."""

    def __init__(self, boundary: Boundary) -> None:
        self._held: list[int] = []
        self._files: dict[str, tuple[int, int]] = {}
        self._reasons = {
            rule.path: rule.reason
            for rule in (*boundary.protects, *boundary.hides)
            if rule.kind == "file" and not any(below(rule.path, seen) for seen in boundary.mapped)
        }
        for path in self._reasons:
            try:
                if len(self._held) < MAX_HELD:
                    self._held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
                info = os.lstat(path)
            except OSError:
                continue
            self._files[path] = (info.st_dev, info.st_ino)

    def lost(self) -> list[Finding]:
        """A finding for each file that is another one now. Nothing is held open any more."""
        findings: list[Finding] = []
        for path, file in self._files.items():
            try:
                info = os.lstat(path)
            except OSError:
                continue  # what is gone has nothing to cover; what cannot be looked at was not made by the worker
            if (info.st_dev, info.st_ino) != file:
                detail = "a program of the host replaced it while the command ran, and its cover went with the old one"
                findings.append(Finding("uncovered", path, f"{detail}; {self._reasons[path]}"))
        self.close()
        return findings

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held = []
