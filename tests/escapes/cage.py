"""A boundary with something of every kind in it, and many attempts on it from one sandbox.

Each attempt is Python statements, run in a process of its own by `RUNNER`, which says what became of it: "ok", or the
name of the errno. The same attempts run without a boundary on a world of the same making (`unconfined`): an attempt
that fails there too would prove nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import skep_bwrap
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules

RUNNER = """
import array, ctypes, errno, fcntl, json, mmap, os, signal, socket, stat, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

def connect(path, kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.setblocking(False)
        sock.connect(path)

def namespace():
    "A user and a mount namespace of our own, with every capability there."
    uid, gid = os.getuid(), os.getgid()
    call("unshare", 0x10000000 | 0x20000)
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
        except PermissionError:
            pass

def mount(source, target, kind=None, flags=0, data=None):
    call("mount", source and source.encode(), target.encode(), kind and kind.encode(), flags, data and data.encode())

world = json.loads(sys.argv[1])
globals().update(world)

def one(body):
    try:
        exec(body, globals())
        return "ok"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

for name, body in json.loads(sys.argv[2]).items():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.chdir(W)
        os.write(write, one(body).encode())
        os._exit(0)
    os.close(write)
    said = b""
    while block := os.read(read, 4096):
        said += block
    os.close(read)
    status = os.waitpid(child, 0)[1]
    print(json.dumps([name, said.decode() or f"signal {os.WTERMSIG(status)}"]), flush=True)
"""


class Attempt(NamedTuple):
    """`expected` are the outcomes inside, any of them. `control` says who manages it without a boundary: "anyone",
    "root", or "nobody" (on this machine's kernel and ours, the promise is then only that it fails).
    """

    name: str
    body: str
    expected: tuple[str, ...]
    control: Literal["anyone", "root", "nobody"] = "anyone"
    instead: str = ""
    """What the control does, where the attempt itself is only possible inside."""


class World:
    """Folders below one base: W, the writable root, and O, a folder beside it, with a file, a folder and a socket."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.ws, self.out = base / "ws", base / "out"
        self.sockets: list[socket.socket] = []
        for folder in (self.ws, self.out, self.ws / "kept", self.ws / "deep/down/kept", self.ws / "secret"):
            folder.mkdir(parents=True)
        (self.out / "hidden").mkdir()
        for folder in (self.out, self.ws / "kept", self.ws / "deep/down/kept", self.ws / "secret", self.out / "hidden"):
            (folder / "file").write_text("untouched\n")
            (folder / "empty").mkdir()
            (folder / "link").symlink_to("file")
        (self.ws / "kept.txt").write_text("untouched\n")
        (self.ws / "secret.txt").write_text("untouched\n")
        (self.ws / "mine").write_text("mine\n")
        (self.ws / "to-out").symlink_to(self.out)
        (self.ws / "to-file").symlink_to(self.out / "file")
        (self.ws / "to-secret").symlink_to(self.ws / "secret")
        for path, kind in (
            (self.out / "s", socket.SOCK_STREAM),
            (self.out / "g", socket.SOCK_DGRAM),
            (self.ws / "s", 1),
        ):
            self.listen(str(path), kind)
        (self.ws / "to-socket").symlink_to(self.out / "s")

    def listen(self, name: str, kind: int = socket.SOCK_STREAM) -> None:
        server = socket.socket(socket.AF_UNIX, kind)
        server.bind(name)
        if kind != socket.SOCK_DGRAM:
            server.listen(100)
        self.sockets.append(server)

    def names(self, **more: object) -> dict[str, object]:
        return {"W": str(self.ws), "O": str(self.out), "BASE": str(self.base), **more}

    def snapshot(self) -> dict[str, tuple[int, int, int, bytes | str]]:
        """Everything outside of what the worker may write: mode, owner, links and content by path."""
        found: dict[str, tuple[int, int, int, bytes | str]] = {}
        kept = (
            self.out,
            self.ws / "kept",
            self.ws / "deep",
            self.ws / "secret",
            self.ws / "kept.txt",
            self.ws / "secret.txt",
        )
        for top in kept:
            for path in (top, *sorted(top.rglob("*"))):
                info = path.lstat()
                content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
                found[str(path)] = (info.st_mode, info.st_uid, info.st_nlink if path.is_file() else 0, content)
        return found

    def close(self) -> None:
        for server in self.sockets:
            server.close()


class Host:
    """What else of the host an attempt may look for: a process, memory, an abstract socket, a port."""

    def __init__(self) -> None:
        self.victim = subprocess.Popen(["sleep", "1000"])
        self.memory = Path(f"/dev/shm/skep-cage-{os.getpid()}")
        self.memory.write_text("hush")
        self.temporary = Path(f"/tmp/skep-cage-{os.getpid()}")
        self.temporary.write_text("hush")
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0skep-cage-{os.getpid()}")
        self.abstract.listen(100)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.key = int.from_bytes(os.urandom(4), "big") >> 1 | 1
        self.objects = system_v(self.key)

    def names(self) -> dict[str, object]:
        return {
            "PID": self.victim.pid,
            "SHM": str(self.memory),
            "TMP": str(self.temporary),
            "ABSTRACT": f"\0skep-cage-{os.getpid()}",
            "PORT": self.server.getsockname()[1],
            "KEY": self.key,
        }

    def close(self) -> None:
        self.victim.send_signal(signal.SIGKILL)
        self.victim.wait()
        self.memory.unlink()
        self.temporary.unlink()
        self.abstract.close()
        self.server.close()
        subprocess.run(["ipcrm", *self.objects], check=True)


def system_v(key: int) -> list[str]:
    """Shared memory, a message queue and a semaphore under that key, as words of ipcrm(1)."""
    libc = ctypes.CDLL(None, use_errno=True)
    made = {"-m": libc.shmget(key, 4096, 0o3600), "-q": libc.msgget(key, 0o3600), "-s": libc.semget(key, 1, 0o3600)}
    assert -1 not in made.values(), os.strerror(ctypes.get_errno())
    return [word for option, number in made.items() for word in (option, str(number))]


def boundary(world: World) -> Boundary:
    ws, out = str(world.ws), str(world.out)

    def rule(path: str, access: Access, kind: Literal["file", "dir"] = "dir") -> PathRule:
        return PathRule(path, access, kind)

    return Boundary(
        workspace=ws,
        cwd=ws,
        home=str(world.base),
        uid=os.getuid(),
        gid=os.getgid(),
        roots=(rule(ws, Access.WRITE),),
        protects=(
            rule(f"{ws}/kept", Access.READ),
            rule(f"{ws}/deep/down/kept", Access.READ),
            rule(f"{ws}/kept.txt", Access.READ, "file"),
        ),
        hides=(
            rule(f"{ws}/secret", Access.HIDDEN),
            rule(f"{ws}/secret.txt", Access.HIDDEN, "file"),
            rule(f"{out}/hidden", Access.HIDDEN),
        ),
        reads=(),
        watched=(),
        mapped={},
        read="host",
        devices=(),
        sockets=(),
        rules=Rules.build(),
        env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(world.base)},
        limits=Limits(wall=120.0),
    )


def confined(bwrap: str, world: World, names: Mapping[str, object], attempts: Iterable[Attempt]) -> dict[str, str]:
    """The outcome of each attempt inside, all from one sandbox."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        argv = ["python3", "-c", RUNNER, json.dumps(names), json.dumps({a.name: a.body for a in attempts})]
        outcome = skep_bwrap.run(
            boundary(world),
            argv,
            bwrap=bwrap,
            stdin=nothing.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        out.seek(0)
        err.seek(0)
        assert outcome.exit_code == 0, err.read()[-2000:]
        return dict(json.loads(line) for line in out)


def unconfined(host: Mapping[str, object], attempt: Attempt) -> str:
    """The outcome of the attempt, or of what stands for it, without a boundary and on a world of its own."""
    base = Path(tempfile.mkdtemp(prefix=".skep-control-", dir=Path.home()))
    world = World(base)
    try:
        body = json.dumps({attempt.name: attempt.instead or attempt.body})
        argv = [sys.executable, "-c", RUNNER, json.dumps(world.names(**host)), body]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        return str(json.loads(done.stdout)[1])
    finally:
        world.close()
        shutil.rmtree(base, ignore_errors=True)


def matrix(operations: Mapping[str, tuple[str, str]], places: Mapping[str, str], **other: str) -> Iterator[Attempt]:
    """Every operation on `D` and `F` in every place. `other` names the outcome of an operation where it differs."""
    for place, folder in places.items():
        for name, (body, outcome) in operations.items():
            yield Attempt(f"{name}: {place}", f"D = {folder}; F = D + '/file'\n{body}", (other.get(name, outcome),))
