"""The patch of a run: the difference of two trees, as text git and people read."""

from __future__ import annotations

import os
from pathlib import Path

from .hostgit import Git

DIFF = (
    *(
        "diff-tree",
        "-r",
        "-p",
        "--binary",
        "--full-index",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--no-relative",
    ),
    *("-M", "--src-prefix=a/", "--dst-prefix=b/", "--ignore-submodules=none"),
)


def write_patch(git: Git, before: str, after: str, target: Path) -> None:
    """`target` holds the difference of two trees: binary files, modes, links, deletions and renames in it. Raises
    OSError.

    Names are quoted as git does, so the file is safe to print as far as names go; contents are what they are.
    """
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        git.run(*DIFF, before, after, stdout=fd)
        os.fsync(fd)
    finally:
        os.close(fd)


def matches(git: Git, before: str, after: str, target: Path) -> bool:
    """Whether the file is the difference of the two trees, made again."""
    again = target.with_name(target.name + ".again")
    try:
        write_patch(git, before, after, again)
        with again.open("rb") as made, target.open("rb") as kept:
            while True:
                left, right = made.read(1 << 20), kept.read(1 << 20)
                if left != right:
                    return False
                if not left:
                    return True
    finally:
        again.unlink(missing_ok=True)


def summary(git: Git, before: str, after: str) -> list[tuple[str, str, str]]:
    """(lines added, lines removed, name) of each file, `-` for binary ones, `old -> new` for renames."""
    listing = git.run("diff-tree", "-r", "--numstat", "-z", "-M", "--no-textconv", "--no-ext-diff", before, after)
    rows: list[tuple[str, str, str]] = []
    fields = iter(os.fsdecode(field) for field in listing.split(b"\0"))
    for field in fields:
        if not field:
            continue
        added, removed, name = field.split("\t", 2)
        if not name:
            name = f"{next(fields)} -> {next(fields)}"
        rows.append((added, removed, name))
    return rows
