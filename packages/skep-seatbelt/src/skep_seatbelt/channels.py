"""What a worker may talk to: hosts, sockets, Mach services, processes, shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skep_policy.boundary import Boundary
from skep_policy.rules import Rules
from skep_policy.verdict import DENIED_BY_RULE

from . import places, services
from .files import shallow_first
from .filters import literals, subpaths
from .sbpl import All, Comment, Item, Literal, Named, Rule, Socket, Word

MARKER = "skep.run."
"""Prefix of a service that does not exist. Only the processes of one run may look its name up, which is how they are
found again when they have left their process group and their parent."""

SAME_SANDBOX = ("signal", "process-info*")
GUARDED_SAME_SANDBOX = ("mach-priv-task-port", "mach-task-name", "mach-task-read", "mach-task-inspect")


def network_rules(rules: Rules, port: int | None, listen: bool) -> Iterator[Item]:
    if rules.mode == "open":
        yield Comment("every host")
        yield Rule("allow", ("network-outbound",), (Socket("remote", "*", "*"), Literal(places.RESOLVER)))
        yield Rule("allow", ("network-bind", "network-inbound"), (Socket("local", "*", "*"),))
        yield Rule("allow", ("necp-client-open",), guarded=True)
        return
    every, ports, refused = loopback_ports(rules)
    if port is not None:
        ports = {port, *ports}
    if every:
        yield Comment("the machine's loopback, by the policy's localhost:*")
        yield Rule("allow", ("network-outbound",), (Socket("remote", "localhost", "*"),))
        if refused - {port}:
            denied = tuple(Socket("remote", "localhost", one) for one in sorted(refused - {port}))
            yield Rule("deny", ("network-outbound",), denied)
    elif ports:
        yield Comment("the run's proxy, and loopback services the policy names")
        yield Rule("allow", ("network-outbound",), tuple(Socket("remote", "localhost", one) for one in sorted(ports)))
    if listen:
        yield Comment("servers inside, as the operator said: every address of the machine counts as local")
        yield Rule("allow", ("network-bind", "network-inbound"), (Socket("local", "*", "*"),))


SYSCTL_TREES = ("hw.", "kern.proc.pgrp.", "kern.proc.pid.", "machdep.cpu.", "net.", "sysctl.", "vm.")
SYSCTLS = (
    *("kern.argmax", "kern.bootargs", "kern.boottime", "kern.hostname", "kern.iossupportversion"),
    *("kern.maxfiles", "kern.maxfilesperproc", "kern.maxproc", "kern.maxprocperuid", "kern.ngroups"),
    *("kern.osproductversion", "kern.osrelease", "kern.osrevision", "kern.ostype", "kern.osvariant_status"),
    *("kern.osversion", "kern.secure_kernel", "kern.usrstack64", "kern.uuid", "kern.version"),
    "security.mac.lockdown_mode_state",
)
"""What is readable of the kernel. The reason for a list is what is not on it: `kern.procargs2` gives out the
environment of every process of the user. Measurements of others disagree on whether a profile can refuse it; the one
that could (macOS 26) took such a list and `process-info*` together.
"""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def loopback_ports(rules: Rules) -> tuple[bool, set[int], set[int]]:
    """Whether every loopback port is allowed, the ports that are, and those a deny rule takes away again.

    A profile cannot tell `localhost` from `127.0.0.1` or `::1`: what is denied for one of them is denied.
    """

    def denied(port: int) -> bool:
        return any(rules.decide(host, port).reason == DENIED_BY_RULE for host in LOOPBACK)

    named = {rule.port for rule in rules.deny if isinstance(rule.port, int)}
    unnamed = next(port for port in range(1, len(named) + 2) if port not in named)
    every = not denied(unnamed) and any(
        rule.port == "any" and (rule.host == "localhost" or rule.host in ("127.0.0.0/8", "127.0.0.1/32", "::1/128"))
        for rule in rules.allow
        if rule.kind in ("name", "net")
    )
    ports = {port for host, port in rules.services if rules.decide(host, port).allow and not denied(port)}
    return every, ports, {port for port in named if denied(port)}


def socket_rules(boundary: Boundary, host_sockets: Iterable[str]) -> Iterator[Item]:
    if boundary.sockets:
        yield Comment("Unix sockets of the host that the policy names")
        yield Rule("allow", ("network-outbound",), literals(sorted(boundary.sockets)))
    folders = [rule.path for rule in shallow_first(boundary.roots) if rule.kind != "file"]
    if folders and not boundary.strict:
        yield Comment("the worker's own Unix sockets, below its roots")
        yield Rule("allow", ("network-outbound", "network-bind", "network-inbound"), subpaths(folders))
        granted = {places.canonical(path) for path in boundary.sockets}
        others = {places.canonical(path) for path in host_sockets} - granted
        if foreign := sorted(path for path in others if any(places.below(path, folder) for folder in folders)):
            yield Comment("but not those where programs of the host listen")
            yield Rule("deny", ("network-outbound", "network-bind", "network-inbound"), literals(foreign))


def service_rules(rules: Rules, tag: str, extra: Iterable[str]) -> Iterator[Item]:
    names = {*services.BASE, *(services.OPEN_NETWORK if rules.mode == "open" else ()), *extra}
    yield Comment("Mach services that do nothing on a caller's behalf; the last one does not exist and marks the run")
    looked_up = (Named("global-name", name) for name in sorted(names))
    local = (Named("local-name", name) for name in services.LOCAL)
    yield Rule("allow", ("mach-lookup",), (*looked_up, *local, Named("global-name", MARKER + tag)))


def process_rules() -> Iterator[Item]:
    yield Comment(
        "processes of this run, shared memory by the names of known libraries, the user's general preferences"
    )
    family = (Word("target", "self"), Word("target", "same-sandbox"))
    yield Rule("allow", SAME_SANDBOX, family)
    yield from (Rule("allow", (operation,), family, guarded=True) for operation in GUARDED_SAME_SANDBOX)
    shown = (Named("ipc-posix-name", "apple.shm.notification_center"), Named("ipc-posix-name-prefix", "apple.cfprefs."))
    yield Rule("allow", ("ipc-posix-shm-read*",), shown, guarded=True)
    known = ("/psm_", "psm_", "/torch_", "torch_")
    yield Rule("allow", ("ipc-posix-shm*",), tuple(Named("ipc-posix-name-prefix", name) for name in known), True)
    yield Rule("allow", ("iokit-get-properties",), guarded=True)
    general = Named("preference-domain", "kCFPreferencesAnyApplication")
    yield Rule("allow", ("user-preference-read",), (general,), guarded=True)
    system = All((Word("socket-domain", "AF_SYSTEM"), Word("socket-protocol", "2")))
    yield Rule("allow", ("system-socket",), (Word("socket-domain", "AF_ROUTE"), system), guarded=True)
    yield Rule("allow", ("sysctl-write",), (Named("sysctl-name", "kern.grade_cputype"),), guarded=True)
    yield Comment("what programs ask of the kernel, and not the arguments and environments of other processes")
    asked = (*(Named("sysctl-name", name) for name in SYSCTLS), *(Named("sysctl-name-prefix", p) for p in SYSCTL_TREES))
    yield Rule("allow", ("sysctl-read",), asked)
