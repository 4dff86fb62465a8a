"""What an agent finds of its own state in a run: copies, made anew for each run and gone with it.

So its login works, the host's folder never changes whatever the worker does, and no run sees what another left.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from .presets import State

MAX_FILE = 32 << 20
"""Bytes of one file of configuration; what is larger is data, and stays where it is."""


def lay_out(states: Mapping[str, State], target: Path, *, home: str) -> dict[str, str]:
    """The folders stand below `target`; returns the variables that lead there. Raises OSError."""
    variables: dict[str, str] = {}
    target.mkdir(mode=0o700)
    for number, (path, state) in enumerate(sorted(states.items())):
        source = home + path[1:] if path.startswith("~/") else path
        top = target / str(number)
        folder = top / state.inside if state.inside else top
        folder.mkdir(mode=0o700, parents=True)
        for name in state.keep:
            _copy(os.path.join(source, name), folder / name)
        variables[state.variable] = str(top)
    return variables


def _copy(source: str, target: Path) -> None:
    """A file or folder of the user's as it is there; a link to one, as people keep their dotfiles, counts as it."""
    try:
        info = os.stat(source)
    except OSError:
        return
    if stat.S_ISDIR(info.st_mode):
        shutil.copytree(source, target, symlinks=True, ignore=_no_data, ignore_dangling_symlinks=True)
    elif stat.S_ISREG(info.st_mode) and info.st_size <= MAX_FILE:
        shutil.copyfile(source, target)
        target.chmod(0o600)


def _no_data(folder: str, names: list[str]) -> list[str]:
    """What of a folder is no configuration: large files, sockets, repositories' own data."""
    left: list[str] = []
    for name in names:
        info = os.lstat(os.path.join(folder, name))
        kind = stat.S_IFMT(info.st_mode)
        plain = kind in (stat.S_IFDIR, stat.S_IFLNK) or (kind == stat.S_IFREG and info.st_size <= MAX_FILE)
        if not plain or name == ".git":
            left.append(name)
    return left
