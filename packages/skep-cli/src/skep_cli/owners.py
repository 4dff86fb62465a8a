"""Folders that belong to somebody else: what skep cannot do there, and who could.

Nothing here imports click: `skep exec` tells of it.
"""

from __future__ import annotations

import os
import stat


def name_of(uid: int) -> str:
    """The name of an account, its number where it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def closed_to_worker(folder: str) -> str | None:
    """Why a worker may not write in a folder that no boundary keeps it from; None where it may. Root in the sandbox has
    its own files and none of its powers.
    """
    try:
        info = os.stat(folder)
    except OSError:
        return None  # somebody has removed it meanwhile
    if os.geteuid() != 0:
        if os.access(folder, os.W_OK):
            return None
        if info.st_uid == os.geteuid() and not info.st_mode & stat.S_IWUSR:
            return f"{folder} is read-only for you as well; `chmod u+w {folder}` changes that"
        return f"{folder} belongs to {name_of(info.st_uid)}: you may not write there"
    group = info.st_gid == 0 and info.st_mode & stat.S_IWGRP
    if info.st_uid == 0 or group or info.st_mode & stat.S_IWOTH:
        return None
    owner = name_of(info.st_uid)
    return (
        f"{folder} belongs to {owner}, and root has no powers over other users' files in the sandbox: "
        f"start it as {owner}, with `runuser -u {owner} -- skep exec ...`"
    )
