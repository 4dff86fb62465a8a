"""A boundary and facts of the host, compiled to what is spawned. Pure: the same values give the same bytes.

The worker's user namespace is one below the sandbox's (`apart`): the shim starts as uid 0 of the namespace that owns
the mounts, the processes and the network, finishes what bwrap has no option for, and becomes the caller again in a
namespace that owns nothing. So the sandbox's pid 1 cannot be traced by the worker, mounts the host makes later do not
appear inside, and routes and device nodes cannot be changed. Where the kernel refuses (AppArmor profiles that give
the children of bwrap no capability) a launch without it is compiled, and its layers say so.
"""

from __future__ import annotations

import os

from skep_policy.address import LOOPBACK, classify
from skep_policy.boundary import Access, Boundary, PathRule
from skep_policy.clients import proxy_environment, ssh_environment
from skep_policy.launch import Launch
from skep_policy.rules import Rules
from skep_policy.value import Value, replace

from .errors import BackendUnavailable
from .facts import HostFacts
from .filters import PROGRAMS
from .mounts import PROC_READ_ONLY, SHIM_INSIDE, destinations, divide, stages
from .ops import Data, below, render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final

PROXY_PORT: Final = 3128
MAX_ARGS: Final = 9000
"""bwrap's own limit (bubblewrap.c), which counts what it reads from `--args` too."""
NO_CORE: Final = 1
"""Bytes. The host's core handler would run as root on what the worker made of its memory; 1 stops even a handler
that is a pipe (core(5), fs/coredump.c), which 0 does not.
"""
DEVICE_NODES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
"""The host's own nodes, put there by bwrap; as root their modes could be changed."""
NOT_APART: Final = "the kernel refused a user namespace of the worker's own: mounts the host makes later appear inside"
EVERY_PORT: Final = 1
"""Where the kernel has nf_tables, connections to all ports arrive at this one. It is privileged, so that no worker
wants it.
"""
MAX_TRANSPARENT_PORTS: Final = 100
"""Where it has not. Two listeners each; more than this and the descriptors of one hand-over would run out of
proportion.
"""
MAX_ATTESTED: Final = 64
"""Paths of a kind tried by the shim before each start, shallow first; the rest is of the same making."""
USUAL_PORTS: Final = (22, 80, 443, 5432, 8080, 8443)
"""The same when a rule allows any port of a host: every port cannot be listened on, the proxy's own serves the
others.
"""


class Network(Value):
    """How packets leave: not at all, through the proxy, through the proxy even for programs that know none, or
    freely. `loopback` are those of the ports at which a rule allows a network of loopback addresses.
    """

    mode: str
    transparent: bool = False
    ports: tuple[int, ...] = ()
    services: tuple[tuple[str, int], ...] = ()
    loopback: tuple[int, ...] = ()


def network_of(boundary: Boundary, *, proxied: bool, transparent: bool) -> Network:
    rules = boundary.rules
    if rules.mode == "open":
        return Network("open")
    if not proxied:
        if rules.mode == "filtered":
            raise BackendUnavailable("the policy allows destinations, and no proxy was handed in to reach them through")
        return Network("none")
    ports = USUAL_PORTS if rules.ports is None else tuple(sorted(rules.ports))[:MAX_TRANSPARENT_PORTS]
    own = [rule.host.partition("/")[0] for rule in rules.allow if rule.kind == "net"]
    own = ["127.0.0.1", "::1", *(address for address in own if classify(address) == LOOPBACK)]
    loopback = [port for port in ports if any(_allows(rules, address, port) for address in own)]
    return Network("filtered", transparent, ports, rules.services, tuple(loopback))


def _allows(rules: Rules, address: str, port: int) -> bool:
    return rules.check_address(rules.decide(address, port), address).allow


def namespace_args(boundary: Boundary, network: Network, *, apart: bool) -> list[str]:
    args = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if network.mode != "open":
        args.append("--unshare-net")
    args += ["--die-with-parent", "--cap-drop", "ALL"]
    if apart:
        args += ["--uid", "0", "--gid", "0"]
        capabilities = ["CAP_SETFCAP", "CAP_SYS_ADMIN"]  # to map uid 0 back; to make mounts private
        if network.transparent:
            capabilities += ["CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE"]
        for capability in capabilities:
            args += ["--cap-add", capability]
    else:
        args += ["--uid", str(boundary.uid), "--gid", str(boundary.gid)]
    return args


def listen_records(network: Network) -> Iterator[tuple[str, str]]:
    if network.mode != "filtered":
        return
    proxy = f"proxy 127.0.0.1 {PROXY_PORT}"
    yield "listen", proxy
    if not network.transparent:
        return
    # At every address, so that a program with a resolver of its own choice is answered too.
    dns = ("dns 0.0.0.0 53", "dns :: 53")
    for record in (*_listeners(network, network.ports), *dns):
        yield "listen", record
    yield "every-port", str(EVERY_PORT)
    every = (f"every 0.0.0.0 {EVERY_PORT}", f"every :: {EVERY_PORT}")
    # Loopback is the worker's own: what it leads to of the host's has listeners of its own.
    for record in (proxy, *every, *_listeners(network, network.loopback), *dns):
        yield "listen-every", record


def _listeners(network: Network, ports: tuple[int, ...]) -> Iterator[str]:
    """At every address for these ports, and at their own for services at others."""
    for port in ports:
        if port != PROXY_PORT:
            yield f"tcp 0.0.0.0 {port}"
            yield f"tcp :: {port}"
    for host, port in network.services:
        if port not in ports and port != PROXY_PORT:
            for address in ("127.0.0.1", "::1") if host == "localhost" else (host,):
                yield f"tcp {address} {port}"


def shim_records(
    boundary: Boundary,
    argv: Sequence[str],
    facts: HostFacts,
    network: Network,
    rules: Sequence[PathRule],
    *,
    apart: bool,
    memory_rlimit: bool,
) -> Iterator[tuple[str, str]]:
    """What the shim is told, in the order it matters to it. `rules` are what is mounted."""
    if apart:
        yield "apart", "1"
        if boundary.uid == 0:
            for path in (*DEVICE_NODES, *boundary.devices):
                yield "device", path
    if network.transparent:
        yield "transparent", "1"
    yield from listen_records(network)
    yield "network", network.mode
    yield "uid", str(boundary.uid)
    yield "gid", str(boundary.gid)
    yield "cwd", boundary.cwd
    for path in boundary.devices:
        yield "let-in", path
    for number in facts.devices:
        yield "host-dev", str(number)
    for name, link in sorted(facts.namespaces.items()):
        if not (name == "net" and network.mode == "open"):
            yield "host-ns", f"{name} {link}"
    yield from attested_paths(boundary, facts, rules)
    if network.transparent:
        yield "filter", PROGRAMS[facts.machine]["base"]
    if boundary.uid == 0 and not boundary.strict:
        yield "filter", PROGRAMS[facts.machine]["root"]
    if apart and memory_rlimit and boundary.limits.memory is not None and boundary.uid != 0:
        yield "no-mounts", "1"  # file systems in memory that nobody outside sees; root has no namespaces in any case
    if boundary.strict:
        yield "strict", "1"
        yield "filter", PROGRAMS[facts.machine]["strict"]
    for name, value in sorted(rlimits(boundary, memory=memory_rlimit).items()):
        yield "rlimit", f"{name} {value}"
    variables = environment(boundary, network, facts)
    for name, value in sorted(variables.items()):
        yield "env", f"{name}={value}"
    if network.transparent:
        explicit = environment(boundary, replace(network, transparent=False), facts)
        for name, value in sorted(explicit.items()):
            if variables.get(name) != value:
                yield "explicit-env", f"{name}={value}"
    for word in argv:
        yield "argv", word


def attested_paths(boundary: Boundary, facts: HostFacts, rules: Sequence[PathRule]) -> Iterator[tuple[str, str]]:
    """What the shim tries to write, to read and to connect to, before every start."""
    for path in ("/", "/etc", "/usr", boundary.home, "/dev", *facts.private):
        # Below /tmp nothing is the host's: a home there (HOME=/tmp/x) is the sandbox's own, and writable.
        own = any(below(path, folder) for folder in facts.private if folder != "/run")
        if boundary.access_to(path) == Access.READ and not own:
            yield "read-only", path
    roots = {root.path for root in boundary.roots}
    for path in sorted({*roots, *facts.private}):
        yield "writable", path
    for path in [rule.path for rule in rules if rule.access == Access.WRITE and rule.path not in roots][:MAX_ATTESTED]:
        yield "pin", path
    for path in facts.private:
        if boundary.access_to(path) != Access.WRITE:
            yield "own", path
    for rule in [rule for rule in rules if rule.access == Access.READ][:MAX_ATTESTED]:
        yield "read-only", rule.path
    for rule in [rule for rule in rules if rule.access == Access.HIDDEN][:MAX_ATTESTED]:
        yield "hidden", rule.path
    for path in [path for path in facts.sockets if path not in boundary.sockets][:MAX_ATTESTED]:
        yield "socket", path
    if boundary.uid == 0:
        for name in PROC_READ_ONLY:
            yield "read-only", f"/proc/{name}"
        for path in (*facts.root_files, *facts.root_folders):
            yield "hidden", path


def environment(boundary: Boundary, network: Network, facts: HostFacts) -> dict[str, str]:
    """The worker's variables; what the policy sets itself is left as it is."""
    own: dict[str, str] = {}
    if network.mode == "filtered":
        own = proxy_environment(PROXY_PORT, transparent=network.transparent, services=bool(network.services))
        if not network.transparent:
            own |= ssh_environment(f"{facts.interpreter} -I -S {SHIM_INSIDE} --connect")
    return {**own, **boundary.env}


def rlimits(boundary: Boundary, *, memory: bool) -> dict[str, int]:
    """Limits a process carries itself. `memory`: no cgroup holds the memory, so each process is held on its own."""
    limits = {"CORE": NO_CORE}
    if boundary.limits.file_size is not None:
        limits["FSIZE"] = boundary.limits.file_size
    if boundary.limits.processes is not None:
        limits["NPROC"] = boundary.limits.processes
    if memory and boundary.limits.memory is not None:
        limits["DATA"] = boundary.limits.memory
    return limits


def compile(
    boundary: Boundary,
    argv: Sequence[str],
    *,
    facts: HostFacts,
    bwrap: str,
    proxied: bool = False,
    transparent: bool = True,
    apart: bool = True,
    memory_rlimit: bool = True,
) -> Launch:
    """The launch of `argv` in `boundary` by the Bubblewrap at `bwrap`.

    `proxied` says that a proxy's connection will be handed in at spawn; `transparent` that programs which know no proxy
    are served as well; `apart` that the worker gets a user namespace below the sandbox's, without which nothing is
    transparent; `memory_rlimit` that no cgroup holds the memory limit. Raises BackendUnavailable when this machine has
    no seccomp filter of ours, the policy needs a proxy, or a path cannot be mounted as it says; ValueError for an
    argv that names no program.
    """
    if isinstance(argv, str) or not argv:
        raise ValueError(f"argv is a list, the program and its arguments, not {argv!r}")
    if facts.machine not in PROGRAMS:
        raise BackendUnavailable(f"no seccomp filter for {facts.machine}: only {', '.join(sorted(PROGRAMS))} are known")
    network = network_of(boundary, proxied=proxied, transparent=transparent and proxied and apart)
    planned = stages(boundary, facts, own_names=network.mode == "filtered")
    ops = [*planned.first, *planned.last]
    by_bwrap, covers = divide(planned, boundary) if apart else ([*planned.first, *planned.sockets, *planned.last], [])
    options = [*namespace_args(boundary, network, apart=apart), *render(by_bwrap), "--seccomp", "{fd:seccomp}"]
    if len(options) + 20 > MAX_ARGS:
        raise BackendUnavailable(
            f"the policy comes to {len(options)} arguments of bwrap, which takes {MAX_ARGS}: too many single paths",
            fix="hide or protect folders instead of the files in them",
            check="mount",
        )
    files = {op.name: op.content for op in ops if isinstance(op, Data)}
    files["seccomp"] = bytes.fromhex(PROGRAMS[facts.machine]["shim" if network.transparent else "base"])
    shim = [facts.interpreter, "-I", "-S", SHIM_INSIDE, "--control", "{fd:control}", "--config", "{fd:config}"]
    if network.mode == "filtered":
        shim += ["--proxy", "{fd:proxy}"]
    records = [("cover", f"{cover.kind} {cover.path}") for cover in covers]
    records += shim_records(boundary, argv, facts, network, planned.rules, apart=apart, memory_rlimit=memory_rlimit)
    if any("\0" in value for _, value in records):
        # Records end with NUL: what follows one would be a record of its own, told by whoever wrote the task.
        raise BackendUnavailable("a word of the command or of its environment holds a NUL", fix="take it out")
    return Launch(
        argv=(bwrap, "--args", "{fd:args}", "--", *shim),
        args=tuple(options),
        files=files,
        config=b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in records) + b"\0",
        destinations=tuple(sorted(destinations(ops, boundary))),
        layers=layers(boundary, network, apart=apart),
        evidence=evidence(bwrap, options, shim, records),
    )


def layers(boundary: Boundary, network: Network, *, apart: bool) -> dict[str, bool | str]:
    """What is in force when this launch's worker runs; the spawner adds the limits."""
    return {
        "filesystem": True,
        "apart": apart or NOT_APART,
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
        "every-port": network.transparent,
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
        lines.append(
            f"  {key}={value.partition('=')[0]}=..." if key in ("env", "explicit-env") else f"  {key}={value!r}"
        )
    return "\n".join(lines) + "\n"
