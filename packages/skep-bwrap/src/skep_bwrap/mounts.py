"""The file system a worker sees, as bwrap's operations. Later ones lie on top; the order is

1. the host's root, read-only (or, for `read = "minimal"`, the listed folders only), a new /proc, a minimal /dev
2. private /tmp, /var/tmp and /run, with what of /run name resolution and the distribution need
3. roots, protects, hides, pins and the shim's interpreter together, shallow to deep, each only where
   `Boundary.access_to` says it is the one that wins. A pin is a folder between a writable root and a protect or hide
   inside it, bound over itself: a mount point cannot be renamed, so what it leads to cannot be moved out of the way.
   In an overlay there are no pins, and must be none: binding the host's folder over itself would open it. There no
   folder of the lower layer can be renamed (EXDEV, since `userxattr` rules out redirects), and the writable roots
   inside an overlay are its own
4. devices and sockets let in, name resolution of the network's own, the shim
5. every other socket of the host that is visible by now, covered
6. all that only stands in memory closed for writing, but /tmp, /var/tmp and /dev/shm

bwrap reads the mount table anew for each bind, which is quadratic, and takes 9,000 arguments. So single covers, which
nothing else depends on, are left to the shim (`divide`), which does ten thousand in a moment.
"""

from __future__ import annotations

import os

from skep_policy.boundary import OWN_CODE, Access, Boundary, PathRule
from skep_policy.value import Value, replace

from .errors import BackendUnavailable
from .facts import HostFacts
from .mountinfo import aliases
from .ops import Bind, Data, Dev, Layered, Link, Op, Proc, RemountReadOnly, Tmpfs, below, origin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Final, Literal

SHIM_INSIDE: Final = "/run/skep/netshim"
"""Source or bytecode: Python looks at the first bytes, not at the name."""
PROC_READ_ONLY: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
NOTHING: Final = "/run/skep/nothing"
"""A node that cannot be opened, and beside it a folder that cannot be entered: what the shim covers with."""
VOID: Final = "/run/skep/void"
NEVER_ROOTS: Final = ("/", "/proc", "/sys", "/dev")


class Stages(Value):
    """The mounts of this module's first lines: 1 to 4, 5, and 6. `rules` are what 3 was made of (`mounted`)."""

    first: list[Op]
    sockets: list[Bind]
    last: list[Op]
    rules: list[PathRule]


def filesystem_ops(boundary: Boundary, facts: HostFacts, *, own_names: bool) -> list[Op]:
    """All mounts, in order; see `stages`."""
    planned = stages(boundary, facts, own_names=own_names)
    return [*planned.first, *planned.sockets, *planned.last]


def stages(boundary: Boundary, facts: HostFacts, *, own_names: bool) -> Stages:
    """All mounts. `own_names`: every name but the machine's own is answered by the proxy.

    Raises BackendUnavailable, naming the path, for a root that would open the host's own kernel files, and for a hide
    of what the shim runs from.
    """
    check(boundary, facts)
    rules = mounted(boundary, facts)
    let_in = [
        *(Bind(device, device, "dev") for device in boundary.devices),
        *(Bind(path, path, "ro") for path in boundary.sockets),
        *(resolver_ops(facts) if own_names else ()),
        *ssh_ops(boundary, facts),
        Bind(facts.shim, SHIM_INSIDE, "ro"),
    ]
    reachable = ancestors([*(rule.path for rule in rules if rule.access != Access.HIDDEN), *(op.dest for op in let_in)])
    first = [*base_ops(boundary, facts), *rule_ops(rules, boundary, reachable), *let_in]
    return Stages(first, list(socket_masks(first, boundary, facts)), list(closing_ops(boundary, rules)), rules)


def check(boundary: Boundary, facts: HostFacts) -> None:
    for root in boundary.roots:
        if root.path in NEVER_ROOTS or below(root.path, "/proc") or below(root.path, "/sys"):
            raise BackendUnavailable(
                f"{root.path} cannot be a writable root", fix="name a folder below it", check="mount"
            )
        if root.path == facts.prefix or root.path in facts.code:
            raise BackendUnavailable(
                f"{root.path} cannot be a writable root, since skep itself runs from there",
                fix="install skep elsewhere (`uv tool install skep-cli`)",
                check="mount",
            )
    for hide in boundary.hides:
        if hide.kind != "absent" and hide.path in (facts.prefix, facts.interpreter, facts.shim):
            raise BackendUnavailable(
                f"{hide.path} is hidden, and skep's own Python runs from there",
                fix="hide what is inside it",
                check="mount",
            )


def base_ops(boundary: Boundary, facts: HostFacts) -> Iterator[Op]:
    memory = boundary.limits.memory
    if boundary.read == "host":
        yield Bind("/", "/", "ro")
    else:
        for path, target in sorted(facts.links.items()):
            yield Link(target, path)
        for rule in sorted(boundary.reads):
            if rule.kind != "absent" and rule.path not in facts.links:
                yield Bind(rule.path, rule.path, "ro", optional=True)
    yield Proc()
    if boundary.uid == 0:
        # Only root may write or read these. An ordinary user has them as the kernel made them, since a /proc with a
        # covered part cannot be mounted anew in a nested sandbox.
        for name in PROC_READ_ONLY:
            yield Bind(f"/proc/{name}", f"/proc/{name}", "ro", optional=True)
        for path in facts.root_files:
            yield Bind("/dev/null", path, "ro")
        for path in facts.root_folders:
            if boundary.access_to(path) != Access.HIDDEN:
                yield Tmpfs(path, 0)
                yield RemountReadOnly(path)
    yield Dev()
    yield Tmpfs("/dev/shm", 0o1777, memory)
    for path in facts.private:
        yield Tmpfs(path, 0o755 if path.endswith("/run") else 0o1777, memory)
    for path in facts.run_kept:
        yield Bind(path, path, "ro", optional=True)


def mounted(boundary: Boundary, facts: HostFacts) -> list[PathRule]:
    """What is mounted for roots, protects, hides, pins and the interpreter, shallow to deep."""
    chosen: dict[str, PathRule] = {}
    for rule in (*boundary.roots, *boundary.protects, *boundary.hides):
        if rule.kind != "absent" and boundary.access_to(rule.path) == rule.access:
            chosen[rule.path] = rule
    for rule in [rule for rule in chosen.values() if rule.access != Access.WRITE]:
        for path in aliases(facts.mounts, rule.path):
            if boundary.access_to(path) > rule.access:
                chosen[path] = replace(rule, path=path)
    for path in runtime(boundary, facts):
        chosen[path] = PathRule(path, Access.READ, "dir", OWN_CODE)
    for path in pins(chosen, boundary):
        chosen[path] = PathRule(path, Access.WRITE, "dir", "on the way to a protected or hidden path")
    return sorted(chosen.values(), key=lambda rule: (rule.path.count("/"), rule.path))


def pins(chosen: dict[str, PathRule], boundary: Boundary) -> set[str]:
    """The writable folders above protects and hides that are no mount points yet."""
    found: set[str] = set()
    seen: set[str] = set()
    for rule in chosen.values():
        if rule.access == Access.WRITE:
            continue
        folder = os.path.dirname(rule.path)
        while folder not in seen and folder != "/":
            seen.add(folder)
            free = folder not in chosen and not layered(folder, boundary)
            if free and boundary.access_to(folder) == Access.WRITE:
                found.add(folder)
            folder = os.path.dirname(folder)
    return found


def layered(path: str, boundary: Boundary) -> bool:
    """Does it stand in an overlay?"""
    return any(below(path, seen) for seen in boundary.overlays)


def runtime(boundary: Boundary, facts: HostFacts) -> Iterator[str]:
    """What skep runs from and is not simply readable: bound back where something lies over it, and never writable,
    since the next launch would run on the host what this worker has put there. What a run keeps apart from the host's
    is the worker's, but for the shim's own Python.
    """
    masked = (*facts.private, *(rule.path for rule in boundary.hides if rule.kind != "absent"))
    for path in dict.fromkeys((facts.prefix, facts.interpreter)):
        access = boundary.access_to(path)
        covered = access != Access.WRITE and any(below(path, mask) for mask in masked)
        if covered or (boundary.read == "minimal" and access == Access.HIDDEN):
            yield path
    for path in dict.fromkeys((facts.prefix, facts.interpreter, *facts.code)):
        own = path not in (facts.prefix, facts.interpreter)
        apart = own and any(below(path, seen) for seen in boundary.mapped)
        if boundary.access_to(path) == Access.WRITE and not apart:
            yield path


def ancestors(paths: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


def rule_ops(rules: Sequence[PathRule], boundary: Boundary, reachable: set[str]) -> Iterator[Op]:
    for rule in rules:
        match rule.access, rule.kind:
            case Access.WRITE, _ if overlay := boundary.overlays.get(rule.path):
                yield Layered(overlay.lower, overlay.upper, overlay.work, rule.path)
            case Access.WRITE, _ if layered(rule.path, boundary):
                pass
            case Access.WRITE, _:
                yield Bind(source_of(rule.path, boundary), rule.path, "rw")
            case Access.READ, _ if rule.reason == OWN_CODE:
                yield Bind(rule.path, rule.path, "ro")  # the host's, whatever a run has in its place
            case Access.READ, _:
                yield Bind(source_of(rule.path, boundary), rule.path, "ro")
            case Access.HIDDEN, "dir":
                # Search permission only where something inside stays reachable; never a listing, never an entry.
                yield Tmpfs(rule.path, 0o111 if rule.path in reachable else 0)
            case _:
                # A device node on a nodev mount: neither reading nor writing opens it (EACCES).
                yield Bind("/dev/null", rule.path, "ro")


def source_of(path: str, boundary: Boundary) -> str:
    """The host's path of what the worker sees at `path`."""
    for seen, source in sorted(boundary.mapped.items(), key=lambda item: -len(item[0])):
        if below(path, seen):
            return source + path[len(seen) :]
    return path


def ssh_ops(boundary: Boundary, facts: HostFacts) -> Iterator[Op]:
    """Included system files of ssh that belong to the worker: it refuses to run on others'."""
    if boundary.uid != 0:  # root is root inside as well
        for number, (path, content) in enumerate(facts.ssh.items()):
            if boundary.access_to(path) == Access.READ:
                yield Data(f"ssh{number}", content, path)


def resolver_ops(facts: HostFacts) -> Iterator[Op]:
    if facts.resolv_conf is not None:
        yield Data("resolv", b"nameserver 127.0.0.1\noptions timeout:2 attempts:1\n", facts.resolv_conf)
    if facts.hosts is not None:
        own = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{facts.hostname}\n"
        yield Data("hosts", own.encode(), facts.hosts)


def socket_masks(ops: Sequence[Op], boundary: Boundary, facts: HostFacts) -> Iterator[Bind]:
    """A cover for each socket of the host, and each named pipe that somebody has open outside of the roots, at each
    place where it can be seen.
    """
    pipes = [path for path in facts.pipes if boundary.access_to(path) != Access.WRITE]
    for path in (*facts.sockets, *pipes):
        places = [path, *aliases(facts.mounts, path)]
        places += [seen + path[len(source) :] for seen, source in boundary.mapped.items() if below(path, source)]
        for place in places:
            if path not in boundary.sockets and place not in boundary.sockets and origin(ops, place) in places:
                yield Bind("/dev/null", place, "ro")


def closing_ops(boundary: Boundary, rules: Sequence[PathRule]) -> Iterator[Op]:
    for rule in reversed(rules):
        if rule.access == Access.HIDDEN and rule.kind == "dir":
            yield RemountReadOnly(rule.path)
    yield RemountReadOnly("/dev")
    if boundary.access_to("/run") != Access.WRITE:
        yield RemountReadOnly("/run")
    if boundary.read == "minimal":
        yield RemountReadOnly("/")


class Cover(Value):
    """A mount the shim makes: `file` and `dir` hide the path, `keep` makes a file read-only, `knob` what of the
    kernel's there is, `pin` makes a folder a mount point, `socket` hides what may be gone by then.
    """

    kind: Literal["pin", "keep", "knob", "file", "dir", "socket"]
    path: str


def divide(planned: Stages, boundary: Boundary) -> tuple[list[Op], list[Cover]]:
    """What bwrap is to mount, and what the shim may after it, in this order: pins, shallow to deep, then the rest.

    Sockets must be the shim's: they come and go, and bwrap would make a file where one has just gone. What stands in no
    file system of the host must be bwrap's, which makes the place.
    """
    roots = {root.path for root in boundary.roots}
    files = {rule.path for rule in boundary.protects if rule.kind == "file"}
    memory = [op.dest for op in planned.first if isinstance(op, Tmpfs)] if boundary.read == "host" else ["/"]
    kept: list[Op] = []
    pinned: list[Cover] = []
    covers: list[Cover] = []
    for op in (*planned.first, *planned.last):
        match op:
            case Bind(dest=dest) | Tmpfs(dest=dest) if _made_by_bwrap(kept, dest, memory):
                kept.append(op)
            case Bind("/dev/null", dest, "ro", _):
                covers.append(Cover("file", dest))
            case Bind(_, dest, "ro", _) if dest in files:
                covers.append(Cover("keep", dest))
            case Bind(_, dest, "ro", True) if below(dest, "/proc"):
                covers.append(Cover("knob", dest))
            case Bind(_, dest, "rw", _) if dest not in roots:
                pinned.append(Cover("pin", dest))
            case Tmpfs(dest, 0, _):
                covers.append(Cover("dir", dest))
            case RemountReadOnly("/dev"):  # /run is closed after it
                kept += [Bind("/dev/null", NOTHING, "ro"), Tmpfs(VOID, 0), RemountReadOnly(VOID), op]
            case _:
                kept.append(op)
    left = {cover.path for cover in covers}
    ops = [op for op in kept if not (isinstance(op, RemountReadOnly) and op.dest in left)]
    return ops, [*pinned, *covers, *(Cover("socket", mask.dest) for mask in planned.sockets)]


def _made_by_bwrap(ops: Sequence[Op], dest: str, memory: Sequence[str]) -> bool:
    """Is it for lack of a place of the host's that something is mounted at `dest`? Only below `memory` can it be."""
    return any(dest != folder and below(dest, folder) for folder in memory) and origin(ops, dest) is None


def destinations(ops: Sequence[Op], boundary: Boundary) -> Iterator[tuple[str, str]]:
    """(root, destination), as the host sees them, of every mount point that lies below a writable root."""
    for op in ops:
        if isinstance(op, (Bind, Layered, Tmpfs, Data, Link)):
            for root in boundary.roots:
                if op.dest != root.path and below(op.dest, root.path):
                    yield source_of(root.path, boundary), source_of(op.dest, boundary)
