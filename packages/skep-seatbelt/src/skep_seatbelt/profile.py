"""Boundary -> the rules of a profile. Pure and deterministic.

The order is the meaning, and it is the same under every published reading of the precedence rules:

1. `(allow default)`: what nobody names works as on the host;
2. denials without a filter, one per operation: the ground;
3. allowances with a filter, shallow paths before deep ones;
4. denials with a filter, last: terminals, protects, hides, and the names whose removal would move one of these away.
   Each denies every operation that step 3 allowed by name, since an allowance for a narrow operation is not undone by
   a denial of its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skep_policy.boundary import Boundary, PathRule
from skep_policy.rules import Rules
from skep_policy.verdict import DENIED_BY_RULE

from . import places, services
from .sbpl import All, Any, Comment, Filter, Literal, Named, Not, Operation, Pattern, Rule, Socket, Subpath, Word

MARKER = "skep.run."
"""Prefix of a service that does not exist. Only the processes of one run may look its name up, which is how they are
found again when they have left their process group and their parent."""

GROUND = (
    *("file-write*", "network*", "mach-lookup", "process-info*", "signal"),
    *("appleevent-send", "lsopen", "job-creation", "authorization-right-obtain"),
)
"""Denied by default; known to every macOS that skep supports."""

GUARDED_GROUND = (
    *("file-link", "file-clone", "file-mknod", "file-mount", "file-mount-update", "file-unmount", "fs-snapshot*"),
    *("user-preference-write", "distributed-notification-post", "darwin-notification-post"),
    *("mach-register", "mach-per-user-lookup", "mach-cross-domain-lookup", "mach-host-special-port-set"),
    *("mach-priv-task-port", "mach-task-name", "mach-task-read", "mach-task-inspect"),
    *("ipc-posix-shm*", "ipc-sysv*", "iokit*", "hid-control", "device*", "nvram*", "system-socket", "sysctl-write"),
)
"""The same, where macOS has the operation.

`file-link` and `file-clone` are operations of their own, outside `file-write*`: a hard link made inside a root would be
a writable name of a file outside. They are denied everywhere, since accounts differ on which end the kernel asks about.
"""

SAME_SANDBOX = ("signal", "process-info*")
GUARDED_SAME_SANDBOX = ("mach-priv-task-port", "mach-task-name", "mach-task-read", "mach-task-inspect")

Item = Rule | Comment


def rules_for(
    boundary: Boundary,
    *,
    port: int | None,
    tag: str,
    terminal: str | None = None,
    allow_services: Iterable[str] = (),
    reads: Iterable[str] = (),
) -> tuple[Item, ...]:
    """The profile of a boundary.

    `port` is the proxy's on the loopback. `terminal` is the worker's own pseudo-terminal, `reads` what the start of the
    worker needs besides the boundary, `tag` the run.
    """
    allows = (
        *_writes(boundary),
        *_devices(boundary, terminal),
        *_reads(boundary, reads),
        *_network(boundary.rules, port),
        *_sockets(boundary),
        *_services(boundary.rules, tag, allow_services),
        *_processes(),
    )
    named = {operation for rule in allows if isinstance(rule, Rule) for operation in rule.operations}
    return (
        Comment("what nobody names works as on the host"),
        Rule("allow", ("default",)),
        Comment("the ground: denied unless a rule below allows it"),
        *(Rule("deny", (operation,)) for operation in GROUND),
        *(Rule("deny", (operation,), guarded=True) for operation in GUARDED_GROUND),
        *((Rule("deny", ("file-read*",)),) if boundary.read == "minimal" else ()),
        *allows,
        *_terminals(boundary, terminal),
        *_protects(boundary, named),
        *_renames(boundary),
        *_hides(boundary, named),
    )


def _subpaths(paths: Iterable[str]) -> tuple[Filter, ...]:
    return tuple(Subpath(name) for path in paths for name in places.spellings(path))


def _literals(paths: Iterable[str]) -> tuple[Filter, ...]:
    return tuple(Literal(name) for path in paths for name in places.spellings(path))


def _path_filters(rules: Iterable[PathRule]) -> tuple[Filter, ...]:
    """What an allowance is about: a file is exactly itself; a folder, or what is absent yet, also all below."""
    return tuple(
        (Literal if rule.kind == "file" else Subpath)(name) for rule in rules for name in places.spellings(rule.path)
    )


def _denied_filters(rules: Iterable[PathRule]) -> tuple[Filter, ...]:
    """What a denial is about: a file also by the names below it (`FILE/..namedfork/rsrc`)."""
    wide: list[Filter] = []
    for rule in rules:
        names = places.spellings(rule.path)
        wide += map(Literal, names if rule.kind == "file" else ())
        wide += map(Subpath, names)
    return tuple(wide)


def _shallow_first(rules: Iterable[PathRule]) -> list[PathRule]:
    return sorted(rules, key=lambda rule: (rule.path.count("/"), rule.path))


def _writes(boundary: Boundary) -> Iterator[Item]:
    roots = _path_filters(_shallow_first(boundary.roots))
    if roots:
        yield Comment("the writable roots")
        yield Rule("allow", ("file-write*",), roots)
        yield Rule("allow", ("file-mknod",), roots, guarded=True)


def _devices(boundary: Boundary, terminal: str | None) -> Iterator[Item]:
    yield Comment("devices that keep nothing, the worker's own terminals, devices the policy names")
    yield Rule("allow", ("file-write-data",), (*map(Literal, places.DEVICES), Subpath("/dev/fd")))
    own: list[Filter] = [Literal("/dev/ptmx"), Literal("/dev/tty"), Named("extension", places.OWN_TERMINAL)]
    own += map(Literal, (*((terminal,) if terminal else ()), *sorted(boundary.devices)))
    yield Rule("allow", ("file-write*",), tuple(All((Subpath("/dev"), one)) for one in own))


def _reads(boundary: Boundary, reads: Iterable[str]) -> Iterator[Item]:
    if boundary.read != "minimal":
        return
    yield Comment("reading is denied but for these; folders and links can be looked through, not listed")
    listed = (*boundary.reads, *boundary.protects, *boundary.roots)
    fixed = (*places.STARTUP_READS, *reads)
    yield Rule("allow", ("file-read*",), (Literal("/"), *_subpaths(fixed), *_path_filters(_shallow_first(listed))))
    yield Rule("allow", ("file-read-metadata",), (Word("vnode-type", "DIRECTORY"), Word("vnode-type", "SYMLINK")))


def _network(rules: Rules, port: int | None) -> Iterator[Item]:
    if rules.mode == "open":
        yield Comment("every host")
        yield Rule("allow", ("network-outbound",), (Socket("remote", "*", "*"), Literal(places.RESOLVER)))
        yield Rule("allow", ("network-bind", "network-inbound"), (Socket("local", "*", "*"),))
        return
    every, ports, refused = loopback_ports(rules)
    if port is not None:
        ports = {port, *ports}
    if every:
        yield Comment("the machine's loopback, by the policy's localhost:*")
        yield Rule("allow", ("network-outbound",), (Socket("remote", "localhost", "*"),))
        yield Rule("allow", ("network-bind", "network-inbound"), (Socket("local", "localhost", "*"),))
        if refused - {port}:
            denied = tuple(Socket("remote", "localhost", one) for one in sorted(refused - {port}))
            yield Rule("deny", ("network-outbound",), denied)
    elif ports:
        yield Comment("the run's proxy, and loopback services the policy names")
        yield Rule("allow", ("network-outbound",), tuple(Socket("remote", "localhost", one) for one in sorted(ports)))


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


def _sockets(boundary: Boundary) -> Iterator[Item]:
    if boundary.sockets:
        yield Comment("Unix sockets of the host that the policy names")
        yield Rule("allow", ("network-outbound",), _literals(sorted(boundary.sockets)))
    folders = [rule.path for rule in _shallow_first(boundary.roots) if rule.kind != "file"]
    if folders and not boundary.strict:
        yield Comment("the worker's own Unix sockets, below its roots")
        yield Rule("allow", ("network-outbound", "network-bind", "network-inbound"), _subpaths(folders))


def _services(rules: Rules, tag: str, extra: Iterable[str]) -> Iterator[Item]:
    names = {*services.BASE, *(services.OPEN_NETWORK if rules.mode == "open" else ()), *extra}
    yield Comment("Mach services that do nothing on a caller's behalf; the last one does not exist and marks the run")
    looked_up = (Named("global-name", name) for name in sorted(names))
    local = (Named("local-name", name) for name in services.LOCAL)
    yield Rule("allow", ("mach-lookup",), (*looked_up, *local, Named("global-name", MARKER + tag)))


def _processes() -> Iterator[Item]:
    yield Comment("processes of this run, shared memory by the names of known libraries, harmless kernel clients")
    family = (Word("target", "self"), Word("target", "same-sandbox"))
    yield Rule("allow", SAME_SANDBOX, family)
    yield from (Rule("allow", (operation,), family, guarded=True) for operation in GUARDED_SAME_SANDBOX)
    shown = (Named("ipc-posix-name", "apple.shm.notification_center"), Named("ipc-posix-name-prefix", "apple.cfprefs."))
    yield Rule("allow", ("ipc-posix-shm-read*",), shown, guarded=True)
    known = ("/psm_", "psm_", "/torch_", "torch_")
    yield Rule("allow", ("ipc-posix-shm*",), tuple(Named("ipc-posix-name-prefix", name) for name in known), True)
    yield Rule("allow", ("iokit-get-properties",), guarded=True)
    yield Rule("allow", ("iokit-open",), (Named("iokit-registry-entry-class", "RootDomainUserClient"),), guarded=True)
    system = All((Word("socket-domain", "AF_SYSTEM"), Word("socket-protocol", "2")))
    yield Rule("allow", ("system-socket",), (Word("socket-domain", "AF_ROUTE"), system), guarded=True)
    yield Rule("allow", ("sysctl-write",), (Named("sysctl-name", "kern.grade_cputype"),), guarded=True)
    yield Comment("other processes' arguments and environments")
    yield Rule("deny", ("sysctl-read",), (Named("sysctl-name-prefix", "kern.procargs"),))


def _terminals(boundary: Boundary, terminal: str | None) -> Iterator[Item]:
    own = (*(Literal(one) for one in ("/dev/tty", terminal, *sorted(boundary.devices)) if one),)
    kept = Any((*own, Named("extension", places.OWN_TERMINAL)))
    yield Comment("terminals of the user, and set-id bits anywhere")
    yield Rule(
        "deny",
        ("file-read*", "file-read-data", "file-write*", "file-write-data", "file-ioctl"),
        (All((Pattern(places.TERMINALS), Not(kept))),),
    )
    yield Rule("deny", ("file-write-setugid",), (Subpath("/"),))


def _protects(boundary: Boundary, named: set[Operation]) -> Iterator[Item]:
    protects = _shallow_first(boundary.protects)
    if not protects:
        return
    filters = (*_denied_filters(protects), *_any_case(boundary, protects))
    operations = {"file-write*", "file-write-unlink", *(one for one in named if one.startswith("file-write"))}
    yield Comment("protected: read-only inside the roots")
    yield Rule("deny", tuple(sorted(operations)), filters)
    yield Rule("deny", ("file-mknod",), filters, guarded=True)
    granted = tuple(Not(one) for one in _literals(sorted(boundary.sockets)))
    sockets = tuple(All((one, *granted)) for one in filters) if granted else filters
    yield Rule("deny", ("network-bind", "network-inbound", "network-outbound"), sockets)


def _renames(boundary: Boundary) -> Iterator[Item]:
    """Removing or renaming a folder takes along what is protected below it, so those names stay."""
    kept = {rule.path for rule in boundary.roots}
    for rule in (*boundary.protects, *boundary.hides):
        kept.update(
            folder
            for folder in places.ancestors(rule.path)
            if any(places.below(folder, root.path) for root in boundary.roots)
        )
    if kept:
        yield Comment("the roots, and every folder above something protected or hidden, keep their names")
        yield Rule("deny", ("file-write-unlink",), _literals(sorted(kept)))


def _hides(boundary: Boundary, named: set[Operation]) -> Iterator[Item]:
    hides = _shallow_first(boundary.hides)
    if not hides:
        return
    touching = {one for one in named if one.startswith(("file-", "network-"))}
    operations = {"file*", "file-read*", "file-read-data", "file-read-metadata", "file-write*", "file-write-unlink"}
    operations |= {"file-ioctl", "process-exec*", "network-bind", "network-inbound", "network-outbound"}
    filters: list[Filter] = []
    seen: set[str] = set()
    for hide in hides:
        inside = [root for root in boundary.roots if places.below(root.path, hide.path)]
        but = tuple(Not(one) for one in _path_filters(_shallow_first(inside)))
        filters += (All((one, *but)) if but else one for one in _denied_filters([hide]))
        for root in inside:
            seen.update(folder for folder in places.ancestors(root.path) if places.below(folder, hide.path))
    filters += _any_case(boundary, hides)
    yield Comment("hidden: nothing can be done with these")
    yield Rule("deny", tuple(sorted((operations | touching) - {"file-mknod"})), tuple(filters))
    yield Rule("deny", ("file-mknod",), tuple(filters), guarded=True)
    if seen:
        yield Comment("but the way to a root inside: its folders can be stat-ed, not listed")
        yield Rule("allow", ("file-read-metadata",), _literals(sorted(seen)))


def _any_case(boundary: Boundary, rules: Iterable[PathRule]) -> Iterator[Filter]:
    """What does not exist yet and could be created below a root, in any case and any composition."""
    for rule in rules:
        roots = [root.path for root in boundary.roots if rule.path != root.path and places.below(rule.path, root.path)]
        if rule.kind != "absent" or not roots:
            continue
        root = max(roots, key=len)
        rest = rule.path[len(root.rstrip("/")) :]
        for name in places.spellings(root):
            pattern = f"^{places.pattern_for(name.rstrip('/'))}{places.pattern_for(rest, fold=True)}(/|$)"
            yield All((Subpath(name), Pattern(pattern)))
