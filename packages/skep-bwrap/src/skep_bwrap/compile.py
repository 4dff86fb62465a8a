"""A boundary and facts of the host, compiled to what is spawned. Pure: the same values give the same bytes.

The mounts are made in this order, and later ones lie on top:

1. the host's root, read-only (or, for `read = "minimal"`, the listed folders only), a new /proc, a minimal /dev
2. private /tmp, /var/tmp and /run, with what of /run name resolution and the distribution need
3. roots, protects and hides together, shallow to deep, each only where `Boundary.access_to` says it is the one that
   wins; a protect below a root also pins the folders between them, so that they cannot be moved away with it
4. the shim and its interpreter, where something above has covered them
5. devices and sockets let in; then every other socket of the host, covered
6. name resolution of the network's own; folders of hides and /run closed for writing
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from skep_policy.boundary import Access, Boundary, PathRule
from skep_policy.clients import proxy_environment
from skep_policy.launch import Launch

from .errors import BackendUnavailable
from .facts import HostFacts
from .ops import Bind, Data, Dev, Link, Op, Proc, RemountReadOnly, Tmpfs, render
from .seccomp import ARCHES, base_filter, strict_filter

SHIM_INSIDE: Final = "/run/skep/netshim.py"
PROXY_PORT: Final = 3128
PROC_READ_ONLY: Final = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi")
MAX_TRANSPARENT_PORTS: Final = 100
"""Two listeners each; more than this and the descriptors of one hand-over would run out of proportion."""
MAX_ATTESTED: Final = 64
"""Paths of a kind tried by the shim before each start, shallow first; the rest is of the same making."""
USUAL_PORTS: Final = (22, 80, 443, 5432, 8080, 8443)
"""Transparent ports when a rule allows any port of a host: every port cannot be listened on, the proxy serves the
others.
"""


class Network(msgspec.Struct, frozen=True):
    """How packets leave: not at all, through the proxy, through the proxy even for programs that know none, or
    freely.
    """

    mode: str
    transparent: bool = False
    ports: tuple[int, ...] = ()
    services: tuple[tuple[str, int], ...] = ()


def network_of(boundary: Boundary, *, proxied: bool, transparent: bool) -> Network:
    rules = boundary.rules
    if rules.mode == "open":
        return Network("open")
    if not proxied:
        if rules.mode == "filtered":
            raise BackendUnavailable("the policy allows destinations, and no proxy was handed in to reach them through")
        return Network("none")
    ports = USUAL_PORTS if rules.ports is None else tuple(sorted(rules.ports))[:MAX_TRANSPARENT_PORTS]
    return Network("filtered", transparent, ports, rules.services)


def below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def base_ops(boundary: Boundary, facts: HostFacts) -> Iterator[Op]:
    if boundary.read == "host":
        yield Bind("/", "/", "ro")
    else:
        for path, target in sorted(facts.links.items()):
            yield Link(target, path)
        for rule in sorted(boundary.reads):
            if rule.kind != "absent":
                yield Bind(rule.path, rule.path, "ro", optional=True)
    yield Proc()
    for name in PROC_READ_ONLY:
        yield Bind(f"/proc/{name}", f"/proc/{name}", "ro", optional=True)
    yield Dev()
    yield Tmpfs("/tmp", 0o1777)
    if facts.var_tmp or boundary.read == "minimal":
        yield Tmpfs("/var/tmp", 0o1777)
    yield Tmpfs("/run", 0o755)
    for path in facts.run_kept:
        yield Bind(path, path, "ro", optional=True)


def winning(boundary: Boundary) -> list[PathRule]:
    """The rules that decide at their own path, shallow to deep; a tie goes to the stricter."""
    chosen: dict[str, PathRule] = {}
    for rule in (*boundary.roots, *boundary.protects, *boundary.hides):
        if rule.kind != "absent" and boundary.access_to(rule.path) == rule.access:
            chosen[rule.path] = rule
    return sorted(chosen.values(), key=lambda rule: (rule.path.count("/"), rule.path))


def pins(rule: PathRule, boundary: Boundary, done: set[str]) -> Iterator[Op]:
    """The folders between a writable root and a protected path, bound over themselves: a mount point cannot be
    renamed.
    """
    roots = [root.path for root in boundary.roots if root.path != rule.path and below(rule.path, root.path)]
    if not roots:
        return
    root = max(roots, key=len)
    folders: list[str] = []
    folder = os.path.dirname(rule.path)
    while folder != root and below(folder, root):
        folders.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(folders):
        if folder not in done and boundary.access_to(folder) == Access.WRITE:
            done.add(folder)
            yield Bind(source_of(folder, boundary), folder, "rw")


def source_of(path: str, boundary: Boundary) -> str:
    """The host's path of what the worker sees at `path`."""
    for seen, source in sorted(boundary.mapped.items(), key=lambda item: -len(item[0])):
        if below(path, seen):
            return source + path[len(seen) :]
    return path


def path_ops(boundary: Boundary) -> Iterator[Op]:
    done: set[str] = set()
    for rule in winning(boundary):
        match rule.access, rule.kind:
            case Access.WRITE, _:
                done.add(rule.path)
                yield Bind(source_of(rule.path, boundary), rule.path, "rw")
            case Access.READ, _:
                yield from pins(rule, boundary, done)
                done.add(rule.path)
                yield Bind(source_of(rule.path, boundary), rule.path, "ro")
            case Access.HIDDEN, "dir":
                # Search permission only where something inside stays reachable; never a listing, never an entry.
                inside = any(below(root.path, rule.path) for root in boundary.roots)
                yield Tmpfs(rule.path, 0o111 if inside else 0)
            case _:
                # A device node on a nodev mount: neither reading nor writing opens it (EACCES).
                yield Bind("/dev/null", rule.path, "ro")


def closed_folders(boundary: Boundary) -> Iterator[Op]:
    for rule in reversed(winning(boundary)):
        if rule.access == Access.HIDDEN and rule.kind == "dir":
            yield RemountReadOnly(rule.path)


def runtime_ops(boundary: Boundary, facts: HostFacts) -> Iterator[Op]:
    yield Bind(facts.shim, SHIM_INSIDE, "ro")
    masked = ("/tmp", "/var/tmp", "/run", *(rule.path for rule in boundary.hides if rule.kind != "absent"))
    for path in (facts.prefix, facts.interpreter):
        covered = any(below(path, mask) for mask in masked) and boundary.access_to(path) != Access.WRITE
        if covered or (boundary.read == "minimal" and boundary.access_to(path) == Access.HIDDEN):
            yield Bind(path, path, "ro")


def socket_ops(boundary: Boundary, facts: HostFacts, runtime: Sequence[Op]) -> Iterator[Op]:
    for device in boundary.devices:
        yield Bind(device, device, "dev")
    for path in boundary.sockets:
        yield Bind(path, path, "ro")
    for path in facts.sockets:
        covered = (
            any(below(path, mask) for mask in ("/tmp", "/var/tmp", "/run")) and boundary.access_to(path) != Access.WRITE
        )
        if path not in boundary.sockets and not covered and boundary.access_to(path) != Access.HIDDEN:
            yield Bind("/dev/null", path, "ro")


def resolver_ops(network: Network, facts: HostFacts) -> Iterator[Op]:
    """With the proxy answering, every name but the machine's own comes to it."""
    if network.mode != "filtered":
        return
    if facts.resolv_conf is not None:
        yield Data("resolv", b"nameserver 127.0.0.1\noptions timeout:2 attempts:1\n", facts.resolv_conf)
    if facts.hosts is not None:
        own = f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{facts.hostname}\n"
        yield Data("hosts", own.encode(), facts.hosts)


def filesystem_ops(boundary: Boundary, facts: HostFacts, network: Network) -> list[Op]:
    """All mounts, in the order of this module's first lines."""
    runtime = list(runtime_ops(boundary, facts))
    return [
        *base_ops(boundary, facts),
        *path_ops(boundary),
        *runtime,
        *socket_ops(boundary, facts, runtime),
        *resolver_ops(network, facts),
        *closed_folders(boundary),
        *([RemountReadOnly("/run")] if boundary.access_to("/run") != Access.WRITE else []),
    ]


def namespace_args(boundary: Boundary, network: Network) -> list[str]:
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if network.mode != "open":
        args.append("--unshare-net")
    args += ["--die-with-parent", "--cap-drop", "ALL"]
    if network.transparent:
        # uid 0 of the one user namespace that owns the network namespace; the shim maps itself back before the worker.
        args += ["--uid", "0", "--gid", "0"]
        for capability in ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP"):
            args += ["--cap-add", capability]
    else:
        args += ["--uid", str(boundary.uid), "--gid", str(boundary.gid)]
    return args


def listen_records(network: Network) -> Iterator[tuple[str, str]]:
    if network.mode != "filtered":
        return
    yield "listen", f"proxy 127.0.0.1 {PROXY_PORT}"
    if not network.transparent:
        return
    for port in network.ports:
        if port != PROXY_PORT:
            yield "listen", f"tcp 0.0.0.0 {port}"
            yield "listen", f"tcp :: {port}"
    for host, port in network.services:
        if port not in network.ports and port != PROXY_PORT:
            for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
                yield "listen", f"tcp {address} {port}"
    yield "listen", "dns 127.0.0.1 53"


def shim_records(
    boundary: Boundary, argv: Sequence[str], facts: HostFacts, network: Network
) -> Iterator[tuple[str, str]]:
    """What the shim is told, in the order it matters to it."""
    if network.transparent:
        yield "transparent", "1"
    yield from listen_records(network)
    yield "network", network.mode
    yield "uid", str(boundary.uid)
    yield "gid", str(boundary.gid)
    yield "cwd", boundary.cwd
    for name, link in sorted(facts.namespaces.items()):
        if not (name == "net" and network.mode == "open") and name != "cgroup":
            yield "host-ns", f"{name} {link}"
    read_only = [path for path in ("/", "/etc", "/usr", boundary.home) if boundary.access_to(path) == Access.READ]
    # A home below a folder that is the sandbox's own (HOME=/tmp/x) is not the host's, so writing there proves nothing.
    read_only = [path for path in read_only if not any(below(path, own) for own in ("/tmp", "/var/tmp", "/run"))]
    protects = [rule.path for rule in winning(boundary) if rule.access == Access.READ and rule.kind == "dir"]
    for path in (*read_only, *protects[:MAX_ATTESTED]):
        yield "read-only", path
    for rule in [rule for rule in winning(boundary) if rule.access == Access.HIDDEN][:MAX_ATTESTED]:
        yield "hidden", rule.path
    if boundary.strict:
        yield "filter", strict_filter(ARCHES[facts.machine]).hex()
    for name, value in sorted(rlimits(boundary).items()):
        yield "rlimit", f"{name} {value}"
    for name, value in sorted(environment(boundary, network).items()):
        yield "env", f"{name}={value}"
    for word in argv:
        yield "argv", word


def environment(boundary: Boundary, network: Network) -> dict[str, str]:
    """The worker's variables; what the policy sets itself is left as it is."""
    own: dict[str, str] = {}
    if network.mode == "filtered":
        own = proxy_environment(PROXY_PORT, transparent=network.transparent, services=bool(network.services))
    return {**own, **boundary.env}


def rlimits(boundary: Boundary) -> dict[str, int]:
    """Limits a process carries itself; those a cgroup holds better are set there as well."""
    limits: dict[str, int] = {}
    if boundary.limits.file_size is not None:
        limits["FSIZE"] = boundary.limits.file_size
    if boundary.limits.processes is not None:
        limits["NPROC"] = boundary.limits.processes
    return limits


def compile(
    boundary: Boundary,
    argv: Sequence[str],
    *,
    facts: HostFacts,
    bwrap: str,
    proxied: bool = False,
    transparent: bool = True,
) -> Launch:
    """The launch of `argv` in `boundary` by the Bubblewrap at `bwrap`.

    `proxied` says that a proxy's connection will be handed in at spawn; `transparent` that programs which know no proxy
    are served as well. Raises BackendUnavailable when this machine has no seccomp filter of ours, or the policy
    needs a proxy.
    """
    if facts.machine not in ARCHES:
        raise BackendUnavailable(f"no seccomp filter for {facts.machine}: only {', '.join(sorted(ARCHES))} are known")
    network = network_of(boundary, proxied=proxied, transparent=transparent and proxied)
    ops = filesystem_ops(boundary, facts, network)
    options = [*namespace_args(boundary, network), *render(ops), "--seccomp", "{fd:seccomp}"]
    files = {op.name: op.content for op in ops if isinstance(op, Data)}
    files["seccomp"] = base_filter(ARCHES[facts.machine])
    shim = [facts.interpreter, "-I", "-S", SHIM_INSIDE, "--control", "{fd:control}"]
    if network.mode == "filtered":
        shim += ["--proxy", "{fd:proxy}"]
    records = list(shim_records(boundary, argv, facts, network))
    return Launch(
        argv=(bwrap, "--args", "{fd:args}", "--", *shim),
        args=tuple(options),
        files=files,
        config=b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in records) + b"\0",
        destinations=tuple(sorted(destinations(ops, boundary))),
        layers=layers(boundary, network),
        evidence=evidence(bwrap, options, shim, records),
    )


def destinations(ops: Sequence[Op], boundary: Boundary) -> Iterator[tuple[str, str]]:
    """(root, destination) of every mount point that lies below a writable root."""
    for op in ops:
        if isinstance(op, (Bind, Tmpfs)):
            for root in boundary.roots:
                if op.dest != root.path and below(op.dest, root.path):
                    yield source_of(root.path, boundary), source_of(op.dest, boundary)


def layers(boundary: Boundary, network: Network) -> dict[str, bool | str]:
    """What is in force when this launch's worker runs; the spawner adds the limits."""
    return {
        "filesystem": True,
        "pid": True,
        "ipc": True,
        "uts": True,
        "seccomp": True,
        "capabilities": True,
        "environment": True,
        "sockets": True,
        "hidden": any(rule.kind != "absent" for rule in boundary.hides),
        "network": network.mode != "open",
        "proxy": network.mode == "filtered",
        "transparent": network.transparent,
        "strict": boundary.strict,
    }


def evidence(bwrap: str, options: Sequence[str], shim: Sequence[str], records: Sequence[tuple[str, str]]) -> str:
    """The boundary as text: bwrap's arguments, one option a line, and what the shim was told but values of the
    environment.
    """
    lines: list[str] = [bwrap]
    for word in options:
        if word.startswith("--"):
            lines.append("  " + word)
        else:
            lines[-1] += " " + repr(word)
    lines.append("  -- " + " ".join(shim))
    lines.append("shim")
    for key, value in records:
        lines.append(f"  {key}={value.partition('=')[0]}=..." if key == "env" else f"  {key}={value!r}")
    return "\n".join(lines) + "\n"
