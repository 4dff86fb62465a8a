"""The user's repository: where it is and what it holds, found by reading names and never by letting git look around."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from skep_cli.errors import SkepError, UsageError
from skep_cli.workspace.copier import Copier

from .hostgit import Git, GitFailed, user_config

MAX_POINTER = 1 << 16
_LINKS = ("commondir", "gitdir", "locked")
"""What makes a git dir that of a linked worktree."""


class Repository(msgspec.Struct, frozen=True):
    """A checkout. `root` is the top of its tree, `git_dir` its own, `common_dir` what linked worktrees share."""

    root: str
    git_dir: str
    common_dir: str
    object_format: Literal["sha1", "sha256"]
    head: str | None
    """The commit checked out; None when there is none yet."""
    branch: str | None
    """The name of the branch checked out; None when HEAD is detached."""

    @property
    def objects(self) -> str:
        return os.path.join(self.common_dir, "objects")


class IndexEntry(msgspec.Struct, frozen=True):
    """One entry of the user's index and the stat data it was last seen with."""

    mode: int
    oid: str
    stage: int
    assumed: bool
    """Not looked at: outside a sparse checkout, or assumed unchanged."""
    mtime_ns: int
    ctime_ns: int
    ino: int
    size: int


def find(program: str, folder: Path, *, home: str | None) -> Repository | None:
    """The repository whose tree `folder` is part of, None when it is a plain folder.

    A folder inside a repository counts only when the repository tracks something in it and is not the home folder:
    a run copies the whole tree. Raises UsageError when `folder` is inside a git dir or the repository cannot be read.
    """
    real = Path(os.path.realpath(folder))
    for top in (real, *real.parents):
        if top.name == ".git" or _is_git_dir(top):
            raise UsageError(f"{folder} is a git dir or a bare repository: name a checkout, the worker needs files")
        git_dir = _pointer(top)
        if git_dir is None:
            continue
        if top != real and home and _inside(os.path.realpath(home), str(top)):
            return None
        repository = _read(program, str(top), git_dir)
        if top != real and not _tracks(program, repository, os.path.relpath(real, top)):
            return None
        return repository
    return None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_git_dir(path: Path) -> bool:
    return (path / "HEAD").is_file() and (path / "objects").is_dir() and (path / "refs").is_dir()


def _pointer(top: Path) -> str | None:
    """The git dir a folder's `.git` is or names."""
    entry = top / ".git"
    if entry.is_dir():
        return str(entry.resolve()) if (entry / "HEAD").exists() or (entry / "HEAD").is_symlink() else None
    if not entry.is_file():
        return None
    with entry.open("rb") as file:
        text = os.fsdecode(file.read(MAX_POINTER))
    if not text.startswith("gitdir:"):
        raise UsageError(f"{entry} is no git dir and names none")
    git_dir = os.path.realpath(top / text[len("gitdir:") :].strip())
    if not os.path.isdir(git_dir):
        raise UsageError(f"{entry} names the git dir {git_dir}, which is not there: `git worktree repair` mends it")
    return git_dir


def _read(program: str, root: str, git_dir: str) -> Repository:
    common = git_dir
    try:
        with open(os.path.join(git_dir, "commondir"), "rb") as file:
            common = os.path.realpath(os.path.join(git_dir, os.fsdecode(file.read(MAX_POINTER)).strip()))
    except FileNotFoundError:
        pass
    git = Git(program, git_dir, work_tree=Path(root))
    try:
        object_format = git.text("rev-parse", "--show-object-format")
        head = git.text("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1))
        branch = git.text("symbolic-ref", "--quiet", "--short", "HEAD", ok=(0, 1))
    except (GitFailed, OSError) as error:
        raise UsageError(f"{root} is a repository git cannot read: {error}") from error
    return Repository(
        root, git_dir, common, "sha256" if object_format == "sha256" else "sha1", head or None, branch or None
    )


def head_of(program: str, repository: Repository) -> str | None:
    """The commit checked out at this moment."""
    git = Git(program, repository.git_dir, work_tree=Path(repository.root))
    return git.text("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1)) or None


def _tracks(program: str, repository: Repository, below: str) -> bool:
    git = Git(program, repository.git_dir, work_tree=Path(repository.root))
    return bool(git.run("ls-files", "-z", "--", f":(top,literal){below}"))


def index(program: str, repository: Repository) -> dict[str, IndexEntry]:
    """The user's index by path; of an unmerged path one of its stages."""
    return entries_of(Git(program, repository.git_dir, work_tree=Path(repository.root)))


def entries_of(git: Git) -> dict[str, IndexEntry]:
    """The index of a git dir by path; of an unmerged path one of its stages."""
    listing = git.run("ls-files", "--stage", "-v", "--debug", "-z", "--full-name")
    entries: dict[str, IndexEntry] = {}
    at = 0
    while at < len(listing):
        end = listing.index(b"\0", at)
        tag, rest = listing[at : at + 1], listing[at + 2 : end]
        about, path = rest.split(b"\t", 1)
        mode, oid, stage = about.split()
        facts, at = _debug(listing, end + 1)
        assumed = tag == b"S" or tag.islower()
        entries[os.fsdecode(path)] = IndexEntry(int(mode, 8), oid.decode(), int(stage), assumed, *facts)
    return entries


def _debug(listing: bytes, at: int) -> tuple[tuple[int, int, int, int], int]:
    """mtime, ctime, inode and size of the five lines of `--debug`, and where they end. Raises SkepError when they are
    others.
    """
    lines: list[bytes] = []
    for _ in range(5):
        end = listing.find(b"\n", at)
        lines.append(listing[at:end].strip())
        at = end + 1
    try:
        ctime, mtime = (_nanoseconds(line.split(b": ")[1]) for line in lines[:2])
        ino = int(lines[2].split(b"ino: ")[1])
        size = int(lines[4].split(b"\t")[0].split(b": ")[1])
    except (IndexError, ValueError) as error:
        raise SkepError("this git lists its index in a form skep does not know") from error
    return (mtime, ctime, ino, size), at


def _nanoseconds(text: bytes) -> int:
    seconds, _, fraction = text.partition(b":")
    return int(seconds) * 1_000_000_000 + int(fraction)


def index_mtime_ns(repository: Repository) -> int:
    """When the user's index was last written; 0 when there is none."""
    try:
        return os.stat(os.path.join(repository.git_dir, "index")).st_mtime_ns
    except FileNotFoundError:
        return 0


def detach(program: str, repository: Repository, copy: Path) -> None:
    """A copy whose `.git` is a file, and so names the user's own git dir, gets a git dir of its own.

    Linked worktrees and submodules have such files: without this, a `git commit` in the copy would move the user's
    branch, or find no repository where the user's is out of reach.
    """
    pointer = copy / ".git"
    if not pointer.is_file() or pointer.is_symlink():
        return
    pointer.unlink()
    skip: set[tuple[int, int]] = set()
    for name in ("worktrees", "modules"):
        try:
            info = os.stat(os.path.join(repository.common_dir, name))
        except FileNotFoundError:
            continue
        skip.add((info.st_dev, info.st_ino))
    Copier(skip=frozenset(skip)).copy(Path(repository.common_dir), pointer, in_git=True)
    for entry in os.scandir(repository.git_dir):
        if entry.is_file(follow_symlinks=False) and entry.name not in _LINKS and not entry.name.endswith(".lock"):
            shutil.copyfile(entry.path, pointer / entry.name)
    unset = ("config", "--file", str(pointer / "config"), "--unset-all", "core.worktree")
    Git(program, pointer, work_tree=copy).run(*unset, ok=(0, 5))  # a submodule's own setting leads nowhere from here


def excludes_file(program: str, repository: Repository | None, environ: Mapping[str, str], home: str) -> str:
    """Where the user's own ignore rules are, if they have any."""
    git_dir = repository.git_dir if repository else None
    configured = user_config(program, "core.excludesFile", git_dir=git_dir, environ=environ, kind="path")
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    return os.path.join(home, configured) if configured else os.path.join(base, "git/ignore")
