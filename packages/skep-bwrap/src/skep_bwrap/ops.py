"""Bubblewrap's operations as values, in the order bwrap carries them out, and the one printer of its argument list."""

from __future__ import annotations

from skep_policy.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal


class Bind(Value):
    """`source` of the host stands at `dest`, with everything mounted below it. `optional`: no error when `source` is
    absent.
    """

    source: str
    dest: str
    mode: Literal["ro", "rw", "dev"]
    optional: bool = False


class Layered(Value):
    """`lower` of the host stands at `dest`, and what is written there goes to `upper`; `work` is the kernel's scratch.

    Needs a bwrap with overlays (`overlay.find_overlay_bwrap`).
    """

    lower: str
    upper: str
    work: str
    dest: str


class Tmpfs(Value):
    """An empty folder of memory; `size` in bytes bounds it."""

    dest: str
    perms: int = 0o755
    size: int | None = None


class Data(Value):
    """A read-only file made of `content`, owned by nobody on the host. `name` is its key in `Launch.files`."""

    name: str
    content: bytes
    dest: str


class Link(Value):
    target: str
    dest: str


class RemountReadOnly(Value):
    dest: str


class Proc(Value):
    dest: str = "/proc"


class Dev(Value):
    dest: str = "/dev"


Op = Bind | Layered | Tmpfs | Data | Link | RemountReadOnly | Proc | Dev


def below(path: str, folder: str) -> bool:
    """True when an absolute path is a folder or stands inside it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def origin(ops: Iterable[Op], path: str) -> str | None:
    """The host's path of what stands at `path` inside, None when nothing of the host's file system does.

    The last mount on the way to a path decides, whatever its depth: a mount covers all that was mounted below its
    place before.
    """
    found: str | None = None
    for op in ops:
        match op:
            case Bind(source, dest, _, _) if below(path, dest):
                found = source.rstrip("/") + path[len(dest.rstrip("/")) :] or "/"
            case Layered(lower, _, _, dest) if below(path, dest):
                found = lower.rstrip("/") + path[len(dest.rstrip("/")) :] or "/"
            case Tmpfs(dest, _, _) | Data(_, _, dest) | Link(_, dest) | Proc(dest) | Dev(dest) if below(path, dest):
                found = None
            case _:
                pass
    return found


def standing(ops: Iterable[Op], path: str) -> Op | None:
    """What stands at `path` inside: the last mount on the way to it. None when there is none."""
    found: Op | None = None
    for op in ops:
        if below(path, op.dest) and not isinstance(op, RemountReadOnly):
            found = op
    return found


BIND_FLAGS = {"ro": "--ro-bind", "rw": "--bind", "dev": "--dev-bind"}


def render(ops: Iterable[Op]) -> list[str]:
    """bwrap's arguments, one list element each; `{fd:NAME}` stands for a descriptor of `Launch.files`."""
    args: list[str] = []
    for op in ops:
        match op:
            case Bind(source, dest, mode, optional):
                args += [BIND_FLAGS[mode] + ("-try" if optional else ""), source, dest]
            case Layered(lower, upper, work, dest):
                args += ["--overlay-src", lower, "--overlay", upper, work, dest]
            case Tmpfs(dest, perms, size):
                args += ["--perms", f"{perms:04o}"]
                if size is not None:
                    args += ["--size", str(size)]
                args += ["--tmpfs", dest]
            case Data(name, _, dest):
                args += ["--perms", "0444", "--ro-bind-data", f"{{fd:{name}}}", dest]
            case Link(target, dest):
                args += ["--symlink", target, dest]
            case RemountReadOnly(dest):
                args += ["--remount-ro", dest]
            case Proc(dest):
                args += ["--proc", dest]
            case Dev(dest):
                args += ["--dev", dest]
    return args
