"""What an agent finds of its own state in a run: copies, made anew for each run and gone with it.

So its login works, the host's folder never changes whatever the worker does, and no run sees what another left. Nothing
is ever taken back, a renewed login neither: a worker could hand back the login of somebody else, and the user's next
words would go to that account.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
from skep_policy.facts import Facts

from .presets import State

MAX_FILE = 32 << 20
"""Bytes of one file of configuration; what is larger is data, and stays where it is."""

RENEWED = (
    "the agent renewed its login in the copy of this run, which is gone; where the service has made the old one "
    "worthless, log in again outside, or give it a key"
)


class Own(msgspec.Struct, frozen=True):
    """One folder to lay out: the variable that names it, the folder in it, and name -> the user's own file or folder.
    `logins` are the names of those an agent renews by itself.
    """

    variable: str
    inside: str
    files: dict[str, str]
    logins: tuple[str, ...] = ()


class Laid(msgspec.Struct, frozen=True):
    """What has been laid out: folders by the variables that lead there; of each login the copy, where it is from, and
    its digest.
    """

    variables: dict[str, str] = {}
    logins: tuple[tuple[str, str, bytes], ...] = ()


def owned(states: Mapping[str, State], facts: Facts) -> tuple[Own, ...]:
    """Where the user has the state of a preset: where the variable says, if it is set, else at the usual place."""
    found: list[Own] = []
    for path, state in sorted(states.items()):
        usual = facts.home + path[1:] if path.startswith("~/") else path
        moved = facts.environ.get(state.variable, "")
        folder = os.path.join(moved, state.inside) if moved.startswith("/") else usual
        beside = folder if moved.startswith("/") else os.path.dirname(usual)
        files = {name: os.path.join(folder, name) for name in state.keep}
        files |= {name: os.path.join(beside, name) for name in state.beside}
        found.append(Own(state.variable, state.inside, files, state.login))
    return tuple(found)


def lay_out(owns: tuple[Own, ...], target: Path) -> Laid:
    """The folders stand below `target`. Raises OSError."""
    variables: dict[str, str] = {}
    logins: list[tuple[str, str, bytes]] = []
    target.mkdir(mode=0o700)
    for number, own in enumerate(owns):
        top = target / str(number)
        folder = top / own.inside if own.inside else top
        folder.mkdir(mode=0o700, parents=True)
        for name, source in own.files.items():
            _copy(source, folder / name)
            if name in own.logins and (digest := _digest(folder / name)):
                logins.append((str(folder / name), source, digest))
        variables[own.variable] = str(top)
    return Laid(variables, tuple(logins))


def renewed(laid: Laid) -> list[str]:
    """Of which logins the copy is not what it was: where they are from."""
    return [source for path, source, before in laid.logins if _digest(Path(path)) != before]


def _digest(path: Path) -> bytes:
    """Empty for what is no plain file of configuration any more: the worker may have put anything there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return b""
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_FILE:
            return b""
        return hashlib.sha256(file.read(MAX_FILE)).digest()


def _copy(source: str, target: Path) -> None:
    """A file or folder of the user's as it is there; a link to one, as people keep their dotfiles, counts as it. Raises
    OSError that names what could not be read.
    """
    try:
        info = os.stat(source)
    except OSError:
        return
    if stat.S_ISDIR(info.st_mode):
        try:
            shutil.copytree(source, target, symlinks=True, ignore=_no_data, ignore_dangling_symlinks=True)
        except shutil.Error as failed:  # a list of all that could not be copied, without an errno
            path, _, why = failed.args[0][0]
            raise OSError(errno.EIO, f"cannot be copied: {why}", path) from None
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
