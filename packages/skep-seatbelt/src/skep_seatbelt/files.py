"""What a worker may do with which path: roots, devices, reads, terminals, protects, hides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skep_policy.boundary import Boundary, PathRule

from . import places
from .filters import literals, subpaths
from .sbpl import All, Any, Comment, Filter, Item, Literal, Named, Not, Operation, Pattern, Rule, Subpath, Word

MOUNTING = ("file-write-mount", "file-write-unmount")
"""Names of `file-mount` and `file-unmount` on older systems, where they are of the class that is allowed in roots."""


def _path_filters(rules: Iterable[PathRule]) -> tuple[Filter, ...]:
    """What an allowance is about: a file is exactly itself; a folder, or what is absent yet, also all below.

    A folder above the data volume (`/System`) is meant without it: every file of the user has a second name there.
    """
    filters: list[Filter] = []
    for rule in rules:
        for name in places.spellings(rule.path):
            one: Filter = Literal(name) if rule.kind == "file" else Subpath(name)
            filters.append(All((one, Not(Subpath(places.DATA)))) if places.below(places.DATA, name) else one)
    return tuple(filters)


def _denied_filters(rules: Iterable[PathRule]) -> tuple[Filter, ...]:
    """What a denial is about: a file also by the names below it (`FILE/..namedfork/rsrc`)."""
    wide: list[Filter] = []
    for rule in rules:
        names = places.spellings(rule.path)
        wide += map(Literal, names if rule.kind == "file" else ())
        wide += map(Subpath, names)
    return tuple(wide)


def shallow_first(rules: Iterable[PathRule]) -> list[PathRule]:
    return sorted(rules, key=lambda rule: (rule.path.count("/"), rule.path))


def write_rules(boundary: Boundary) -> Iterator[Item]:
    roots = _path_filters(shallow_first(boundary.roots))
    if roots:
        yield Comment("the writable roots")
        yield Rule("allow", ("file-write*",), roots)
        yield Rule("allow", ("file-mknod",), roots, guarded=True)


def device_rules(boundary: Boundary, terminal: str | None) -> Iterator[Item]:
    yield Comment("devices that keep nothing, the worker's own terminals, devices the policy names")
    yield Rule("allow", ("file-write-data",), (*map(Literal, places.DEVICES), Subpath("/dev/fd")))
    own: list[Filter] = [Literal("/dev/ptmx"), Literal("/dev/tty"), Named("extension", places.OWN_TERMINAL)]
    own += map(Literal, (*((terminal,) if terminal else ()), *sorted(boundary.devices)))
    yield Rule("allow", ("file-write*",), tuple(All((Subpath("/dev"), one)) for one in own))


def read_rules(boundary: Boundary, reads: Iterable[str]) -> Iterator[Item]:
    if boundary.read != "minimal":
        return
    yield Comment("reading is denied but for these; folders and links can be looked through, not listed")
    listed = (*boundary.reads, *boundary.protects, *boundary.roots)
    fixed = (*places.STARTUP_READS, *reads)
    yield Rule("allow", ("file-read*",), (Literal("/"), *subpaths(fixed), *_path_filters(shallow_first(listed))))
    yield Rule("allow", ("file-read-metadata",), (Word("vnode-type", "DIRECTORY"), Word("vnode-type", "SYMLINK")))


def terminal_rules(boundary: Boundary, terminal: str | None) -> Iterator[Item]:
    known = (*places.READ_DEVICES, *places.DEVICES, "/dev/ptmx", "/dev/tty")
    own = (*known, *((terminal,) if terminal else ()), *sorted(boundary.devices))
    kept = Any((*map(Literal, own), Subpath("/dev/fd"), Named("extension", places.OWN_TERMINAL)))
    yield Comment("every other device, terminals of the user among them, and set-id bits and mounts anywhere")
    yield Rule(
        "deny",
        ("file-read-data", "file-write*", "file-write-data", "file-ioctl"),
        (All((Subpath("/dev"), Not(kept))),),
    )
    yield Rule("deny", ("file-write-setugid",), (Subpath("/"),))
    for operation in MOUNTING:
        yield Rule("deny", (operation,), (Subpath("/"),), guarded=True)


def protect_rules(boundary: Boundary, named: set[Operation]) -> Iterator[Item]:
    protects = shallow_first(boundary.protects)
    if not protects:
        return
    filters = (*_denied_filters(protects), *_any_case(boundary, protects))
    operations = {"file-write*", "file-write-unlink", *(one for one in named if one.startswith("file-write"))}
    yield Comment("protected: read-only inside the roots")
    yield Rule("deny", tuple(sorted(operations)), filters)
    yield Rule("deny", ("file-mknod",), filters, guarded=True)
    granted = tuple(Not(one) for one in literals(sorted(boundary.sockets)))
    sockets = tuple(All((one, *granted)) for one in filters) if granted else filters
    yield Rule("deny", ("network-bind", "network-inbound", "network-outbound"), sockets)


def rename_rules(boundary: Boundary) -> Iterator[Item]:
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
        yield Rule("deny", ("file-write-unlink",), literals(sorted(kept)))


def hide_rules(boundary: Boundary, named: set[Operation]) -> Iterator[Item]:
    hides = shallow_first(boundary.hides)
    if not hides:
        return
    touching = {one for one in named if one.startswith(("file-", "network-"))}
    operations = {"file*", "file-read*", "file-read-data", "file-read-metadata", "file-write*", "file-write-unlink"}
    operations |= {"file-ioctl", "process-exec*", "network-bind", "network-inbound", "network-outbound"}
    filters: list[Filter] = []
    seen: set[str] = set()
    for hide in hides:
        inside = [root for root in boundary.roots if places.below(root.path, hide.path)]
        but = tuple(Not(one) for one in _path_filters(shallow_first(inside)))
        denied = (*_denied_filters([hide]), *_any_case(boundary, [hide]))
        filters += (All((one, *but)) if but else one for one in denied)
        for root in inside:
            seen.update(folder for folder in places.ancestors(root.path) if places.below(folder, hide.path))
    yield Comment("hidden: nothing can be done with these")
    yield Rule("deny", tuple(sorted((operations | touching) - {"file-mknod"})), tuple(filters))
    yield Rule("deny", ("file-mknod",), tuple(filters), guarded=True)
    if seen:
        yield Comment("but the way to a root inside: its folders can be stat-ed, not listed")
        yield Rule("allow", ("file-read-metadata",), literals(sorted(seen)))


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
