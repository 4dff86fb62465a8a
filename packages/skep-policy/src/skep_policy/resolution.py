"""A policy, the facts and the file system become a Boundary: everything a backend needs, absolute and without links.

The order of the work is the order of who wins. Roots first: nothing can be said about the rest before it is known
what is writable. Then what git adds to them, then protects, then hides, then what is let in one by one. Nothing the
policy asks for is dropped without a word: it is refused by name, with what to do, or it stands in the boundary's
notes.
"""

from __future__ import annotations

import stat

from .boundary import Access, Boundary, Limits, Overlay, PathRule, below, by_path
from .environment import environment
from .errors import PolicyError
from .facts import Facts
from .hides import hides, refuse_hidden
from .layers import Effective
from .paths import Place, Tree
from .protects import RUN_FOLDER, Protects
from .scope import Scope
from .units import parse_duration, parse_size
from .value import held, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAYERED = "a git folder of the workspace, what is written kept apart"
_NEVER_WRITABLE = ("/", "/proc", "/sys", "/dev")
"""As a whole these are no folders of files; what is wanted of them has keys of its own."""


def resolve(
    effective: Effective,
    *,
    facts: Facts,
    workspace: str | None = None,
    mapped: Mapping[str, str] | None = None,
    overlays: Mapping[str, Overlay] | None = None,
    extra_roots: Sequence[str] = (),
    strict: bool = False,
    absent_too: bool = False,
) -> Boundary:
    """The boundary of one launch. Raises PolicyError, with the layer and the key, for what cannot be enforced.

    `workspace` is the worker's folder, the current one when None. `mapped` says which folder of the host stands at a
    path the worker sees. `overlays` are folders by what the worker sees there: it may write in all of them, their git
    folders included, since no git of the host ever looks at what it wrote. `extra_roots` are folders of the run itself
    (results, scratch): they must exist, and stay reachable whatever is hidden. `absent_too` lists
    what of the built-in hidden set does not exist as well: nothing is enforced there, but it can be explained.
    """
    plain = Tree()
    layered = dict(overlays or {})
    mapping = {plain.place(seen).path: plain.place(source).path for seen, source in (mapped or {}).items()}
    mapping.update({seen: overlay.lower for seen, overlay in layered.items()})
    tree = Tree(mapping)
    place = tree.place(_absolute(workspace or facts.cwd, facts))
    if place.kind != "dir" or place.blocked:
        raise PolicyError(f"the workspace {workspace or facts.cwd} is not a folder that can be used")
    scope = Scope(effective, facts, tree, place.path)
    scope.absent_too = absent_too
    scope.apart = tuple(mapping)
    _own_roots(scope, [path for path in mapping if path == place.path or path not in layered], extra_roots)
    _operator_roots(scope)
    scope.freeze_roots()

    protects = Protects(scope, in_place=scope.workspace not in mapping)
    protects.collect()
    scope.operators += protects.git.guard.roots
    scope.own += [PathRule(path, Access.WRITE, "dir", LAYERED) for path in sorted(layered) if path != place.path]
    scope.freeze_roots()

    hidden, watched_hides = hides(scope)
    hidden_by_path = by_path(hidden)
    read = effective.value("filesystem.read") or "host"
    boundary = Boundary(
        workspace=scope.workspace,
        cwd=_folder(scope),
        home=scope.home,
        uid=facts.uid,
        gid=facts.gid,
        roots=tuple(scope.roots()),
        protects=tuple(rule for rule in protects.rules if not _is_layered_git(rule.path, scope.workspace, layered)),
        hides=tuple(hidden),
        reads=_reads(scope) if read == "minimal" else (),
        watched=tuple(
            item
            for item in sorted({*protects.watched, *watched_hides}, key=held)
            if not _is_layered_git(item.path, scope.workspace, layered)
        ),
        mapped=mapping,
        read=read,
        devices=tuple(_let_in(scope, "filesystem.devices", hidden_by_path)),
        sockets=tuple(_let_in(scope, "filesystem.sockets", hidden_by_path)),
        rules=effective.rules(),
        env={},
        limits=_limits(effective),
        strict=strict,
        links={
            link: text
            for link, text in sorted(protects.links.items())
            if not any(below(link, path) for path in layered)
        },
        known=tuple(protects.known),
        notes=tuple(scope.notes),
        overlays=layered,
    )
    return _with_environment(boundary, scope)


def _absolute(path: str, facts: Facts) -> str:
    return path if path.startswith("/") else f"{facts.cwd.rstrip('/')}/{path}"


def _folder(scope: Scope) -> str:
    """The worker's current folder: the caller's where that is in the workspace."""
    cwd = scope.tree.place(scope.facts.cwd)
    return cwd.path if cwd.kind == "dir" and below(cwd.path, scope.workspace) else scope.workspace


def _is_layered_git(path: str, workspace: str, layered: Mapping[str, Overlay]) -> bool:
    """Is it a repository's own, in a folder whose written state no git of the host ever sees?"""
    for seen in layered:
        if below(path, seen):
            return seen != workspace or ".git" in path[len(seen) :].split("/")
    return False


def _own_roots(scope: Scope, mapped: Sequence[str], extra: Sequence[str]) -> None:
    _refuse_whole(scope.workspace, "the workspace", "start it in the folder of a project")
    scope.own.append(PathRule(scope.workspace, Access.WRITE, "dir", "the workspace"))
    for seen in sorted(mapped):
        scope.own.append(PathRule(seen, Access.WRITE, "dir", "the run's copy"))
    for path in extra:
        place = scope.tree.place(_absolute(path, scope.facts))
        if place.kind == "absent" or place.blocked:
            raise PolicyError(f"{path}, {RUN_FOLDER}, does not exist")
        scope.own.append(PathRule(place.path, Access.WRITE, place.kind, RUN_FOLDER))


def _operator_roots(scope: Scope) -> None:
    for entry in scope.effective.of("filesystem.write"):
        place = scope.place(entry)
        if place.kind == "absent":
            from shlex import quote

            raise scope.error(entry, f"{place.path} does not exist; make it with `mkdir -p {quote(place.path)}`")
        if place.blocked:
            raise scope.error(entry, f"{entry.value} cannot be looked at: {place.path} may not be searched by you")
        _refuse_whole(place.path, f"{entry.key} = {entry.value}", "name a folder of files, or use devices or sockets")
        scope.operators.append(PathRule(place.path, Access.WRITE, place.kind, f"opened by {entry.value}", entry.source))


def _refuse_whole(path: str, what: str, remedy: str) -> None:
    if path == "/" or any(below(path, folder) for folder in _NEVER_WRITABLE if folder != "/"):
        raise PolicyError(f"{path} cannot be writable ({what}); {remedy}")


def _reads(scope: Scope) -> tuple[PathRule, ...]:
    from .minimal import reads

    return tuple(reads(scope))


def _let_in(scope: Scope, key: str, hidden: Mapping[str, PathRule]) -> list[str]:
    """The devices or sockets of the host that are let in. An absent one is a note: a service may be down for a
    while.
    """
    found: dict[str, None] = {}
    sockets = key == "filesystem.sockets"
    for entry in scope.effective.of(key):
        place = scope.place(entry)
        if place.kind == "absent":
            scope.notes.append(f"{entry.source}: {entry.value} does not exist, so it is not let in")
            continue
        fits = stat.S_ISSOCK(place.mode) if sockets else _is_device(place)
        if not fits:
            raise scope.error(entry, f"{place.path} is not a {'socket' if sockets else 'device'}; name one")
        refuse_hidden(entry, place, dict(hidden), scope)
        found[place.path] = None
    return list(found)


def _is_device(place: Place) -> bool:
    """A node, or a folder of nodes as graphics cards have."""
    inside = below(place.path, "/dev") and place.path != "/dev"
    return inside and (stat.S_ISCHR(place.mode) or stat.S_ISBLK(place.mode) or stat.S_ISDIR(place.mode))


def _limits(effective: Effective) -> Limits:
    names = ("wall", "memory", "file-size", "disk-free")
    wall, memory, file_size, disk_free = (effective.value(f"limits.{name}") for name in names)
    return Limits(
        wall=parse_duration(wall) if wall is not None else None,
        memory=parse_size(memory) if memory is not None else None,
        processes=effective.value("limits.processes"),
        file_size=parse_size(file_size) if file_size is not None else None,
        disk_free=parse_size(disk_free) if disk_free is not None else None,
    )


def _with_environment(boundary: Boundary, scope: Scope) -> Boundary:
    """The boundary with its environment, which depends on what the rest of it lets the worker see."""

    def usable(folder: str) -> bool:
        place = scope.tree.place(folder)
        return not place.blocked and boundary.access_to(place.path) != Access.HIDDEN

    env = environment(scope.effective, scope.facts, usable)
    _require_text(boundary)
    return replace(boundary, env=env)


def _require_text(boundary: Boundary) -> None:
    """Raise PolicyError for a path that is not UTF-8: it could neither be recorded nor handed on."""
    rules = (*boundary.roots, *boundary.protects, *boundary.hides, *boundary.reads)
    for path in (boundary.workspace, boundary.cwd, *(rule.path for rule in rules)):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise PolicyError(f"a path that is not UTF-8: {path!r}; rename it") from None
