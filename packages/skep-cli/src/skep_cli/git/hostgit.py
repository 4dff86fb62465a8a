"""git on the host, as a machine that turns bytes into bytes.

Code runs from a repository by its configuration, attributes, hooks and filters. So git here never has a work tree a
worker could write: files are hashed by us (`objects`), and git gets a git dir of our own, made with no template, whose
objects are borrowed from the user's repository. Configuration of the system and of the user is not read, every `GIT_*`
variable is dropped, hooks, monitors, external programs and fetching are switched off by the command line, which beats
every file.

The user's own git dir is opened for four things only: to resolve HEAD, to list the index, to make a reference, and to
ask for the user's name.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, NamedTuple

from skep_cli.errors import CannotRun, SkepError
from skep_cli.stages.interrupts import held, shielded

OFF = {
    "core.alternateRefsCommand": "false",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.askPass": "false",
    "core.editor": "false",
    "core.excludesFile": "/dev/null",
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.gitProxy": "false",
    "core.hooksPath": "/dev/null",
    "core.ignoreCase": "false",
    "core.pager": "cat",
    "core.precomposeUnicode": "false",
    "core.preloadIndex": "false",
    "core.quotePath": "true",
    "core.safecrlf": "false",
    "core.sshCommand": "false",
    "core.symlinks": "true",
    "core.trustctime": "true",
    "core.untrackedCache": "false",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "safe.directory": "*",
    "submodule.recurse": "false",
}
ATTRIBUTES = (
    "* !text !eol !filter !ident !working-tree-encoding !diff !merge !whitespace !conflict-marker-size !delta\n"
)
"""For the `info/attributes` of our own git dir, which beats every `.gitattributes`: bytes are bytes."""
LOCAL = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
"""What a git that calls skep (a hook, an alias) leaves in the environment about its own repository."""
ROOM = 1 << 16
"""Bytes an empty git dir takes, and some more."""
TIMEOUT = 3600.0
"""Seconds after which a git that hangs is killed; a pack of tens of gigabytes takes less."""


def find_git(environ: Mapping[str, str], *, project: str | None = None) -> str:
    """The git program. Raises CannotRun when there is none.

    One in the project, or in the repository around it, is passed over, as is one on a relative path: an activated
    environment puts such a folder on PATH, and a worker can have written there.
    """
    untrusted = _tops(project, environ.get("HOME")) if project else ()
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("git", path=folder) if folder.startswith("/") else None
        if found and not any(_inside(place, top) for place in (found, os.path.realpath(found)) for top in untrusted):
            return found
    raise CannotRun("no git on PATH outside of the project: patches are made with it, install git")


def _tops(project: str, home: str | None) -> list[str]:
    """The project, and the nearest folder around it that has a `.git`, by name and by real path."""
    here = os.path.realpath(project)
    found = [os.path.abspath(project), here]
    while here not in ("/", home) and not os.path.lexists(os.path.join(here, ".git")):
        here = os.path.dirname(here)
    return found if here in ("/", home) else [*found, here]


def _inside(path: str, folder: str) -> bool:
    return path == folder or os.path.normpath(path).startswith(folder.rstrip("/") + "/")


class Account(NamedTuple):
    """Who git runs as."""

    uid: int
    gid: int
    groups: list[int]


def owner(*folders: str) -> Account | None:
    """Whose the first of some folders is that is somebody else's, where we are root: only root may become who it
    wants. They can lead to folders of root's from theirs, and have changed that by the time it is used.
    """
    info = next((info for info in map(os.stat, folders) if info.st_uid != 0), None)
    if os.geteuid() != 0 or info is None:
        return None
    try:
        account = pwd.getpwuid(info.st_uid)
    except KeyError:
        return Account(info.st_uid, info.st_gid, [info.st_gid])
    return Account(info.st_uid, account.pw_gid, os.getgrouplist(account.pw_name, account.pw_gid))


class Git:
    """Runs git in one git dir. `objects` is where objects are read and written instead of its own folder, `index` the
    index file instead of its own, `account` who it runs as instead of who we are.
    """

    def __init__(
        self,
        program: str,
        git_dir: Path | str,
        *,
        objects: str | None = None,
        work_tree: Path | None = None,
        index: Path | None = None,
        account: Account | None = None,
    ) -> None:
        self.program = program
        self.git_dir = str(git_dir)
        self.objects = objects
        self.work_tree = work_tree
        self.index = index
        self.account = account

    def command(self, *args: str, settings: Mapping[str, str] | None = None) -> list[str]:
        words = [self.program, "--no-pager", "--no-replace-objects"]
        for key, value in {**OFF, **(settings or {})}.items():
            words += ("-c", f"{key}={value}")
        return [*words, *args]

    def environment(self) -> dict[str, str]:
        nowhere = dict.fromkeys(("GIT_CONFIG_SYSTEM", "GIT_CONFIG_GLOBAL"), "/dev/null")
        once = ("GIT_CONFIG_NOSYSTEM", "GIT_ATTR_NOSYSTEM", "GIT_NO_REPLACE_OBJECTS", "GIT_NO_LAZY_FETCH")
        env = {
            "PATH": os.path.dirname(self.program) + ":/usr/bin:/bin",
            "HOME": self.git_dir,
            "XDG_CONFIG_HOME": self.git_dir,
            "LC_ALL": "C",
            "GIT_DIR": self.git_dir,
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_PROTOCOL_FROM_USER": "0",
            "GIT_EDITOR": "false",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            **nowhere,
            **dict.fromkeys(once, "1"),
        }
        if self.work_tree:
            env["GIT_WORK_TREE"] = str(self.work_tree)
        if self.index:
            env["GIT_INDEX_FILE"] = str(self.index)
        if self.objects:
            env["GIT_OBJECT_DIRECTORY"] = self.objects
        return env

    def run(
        self,
        *args: str,
        stdin: bytes | int = b"",
        stdout: int = subprocess.PIPE,
        ok: tuple[int, ...] = (0,),
        settings: Mapping[str, str] | None = None,
    ) -> bytes:
        """Its output. Raises GitFailed for an exit status not in `ok`, OSError when git had no room."""
        given = isinstance(stdin, bytes)
        process = None
        try:
            with held:
                process = self.start(*args, settings=settings, stdin=subprocess.PIPE if given else stdin, stdout=stdout)
            answer, errors = process.communicate(stdin if given else None, timeout=TIMEOUT)
        except BaseException:
            if process is not None:
                process.kill()
                process.communicate()
            raise
        if process.returncode not in ok:
            raise failure(args[0], process.returncode, errors)
        return answer or b""

    def start(
        self,
        *args: str,
        stdin: int | IO[bytes],
        stdout: int,
        stderr: int | IO[bytes] = subprocess.PIPE,
        settings: Mapping[str, str] | None = None,
        bufsize: int = -1,
    ) -> subprocess.Popen[bytes]:
        """git, begun, and out of the reach of the signals that are meant for us."""
        uid, gid, groups = self.account or (None, None, None)
        with shielded():
            return subprocess.Popen(
                self.command(*args, settings=settings),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self.work_tree or self.git_dir,
                env=self.environment(),
                bufsize=bufsize,
                user=uid,
                group=gid,
                extra_groups=groups,
            )

    def text(self, *args: str, ok: tuple[int, ...] = (0,)) -> str:
        return os.fsdecode(self.run(*args, ok=ok)).rstrip("\n")


def user_config(
    program: str, name: str, *, git_dir: str | None, environ: Mapping[str, str], kind: str = ""
) -> str | None:
    """One value of the user's own configuration, read as their git reads it; None when there is none.

    Reading a value runs nothing. `kind` is a type of git-config(1).
    """
    env = {key: value for key, value in environ.items() if key not in LOCAL}
    if git_dir:
        env["GIT_DIR"] = git_dir
    words = [program, "config", *([f"--type={kind}"] if kind else []), "--get", name]
    done = subprocess.run(
        words, cwd="/", env=env, capture_output=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL
    )
    return os.fsdecode(done.stdout).rstrip("\n") or None if done.returncode == 0 else None


class GitFailed(SkepError):
    """git refused; the message carries its first line of error."""


def failure(verb: str, status: int, stderr: bytes) -> Exception:
    """What git's error means: an OSError when the disk is full, else GitFailed."""
    text = os.fsdecode(stderr).strip()
    for code in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in text:
            return OSError(code, os.strerror(code))
    lines = [line for line in text.splitlines() if not line.startswith(("hint:", "warning:"))]
    ended = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
    return GitFailed(f"git {verb} failed: {lines[-1] if lines else ended}")


def make_git_dir(program: str, folder: Path, *, object_format: str, borrow: str | None) -> Git:
    """A git dir of our own, empty, that reads the objects of the folder `borrow` as its own."""
    git = Git(program, folder)
    folder.mkdir(mode=0o700)
    (folder / "room").write_bytes(bytes(ROOM))  # git has no clear word for a full disk here
    (folder / "room").unlink()
    git.run(
        "init", "-q", "--bare", "--template=", "--initial-branch=main", f"--object-format={object_format}", str(folder)
    )
    info = folder / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(ATTRIBUTES)
    if borrow:
        (folder / "objects/info").mkdir(parents=True, exist_ok=True)
        (folder / "objects/info/alternates").write_bytes(_alternate(borrow))
    return git


def _alternate(path: str) -> bytes:
    """A line of `objects/info/alternates`; odd names are quoted as git does."""
    raw = os.fsencode(path)
    if raw.startswith((b'"', b"#")) or b"\n" in raw:
        quoted = "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in raw)
        return f'"{quoted}"\n'.encode("ascii")
    return raw + b"\n"
