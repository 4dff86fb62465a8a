"""What a setup has left of ignored files in an overlay, kept apart from what the worker makes of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

from .copier import Copier
from .layer import OPAQUE, Upper


def keep_ignored(found: Upper, ignored: Collection[str], upper: Path, target: Path, copier: Copier) -> None:
    """`target` is an upper layer with those of the paths found in `upper` that are ignored, deletions included; a
    folder is asked for as `FOLDER/.`. Raises OSError.
    """
    copier.copy(upper, target, only=frozenset(path for path in found.files if path in ignored))
    for path in found.opaque:
        if f"{path}/." in ignored and (target / path).is_dir():
            os.setxattr(target / path, OPAQUE, b"y", follow_symlinks=False)
    for path in found.gone:
        if path in ignored:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            os.mknod(target / path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
