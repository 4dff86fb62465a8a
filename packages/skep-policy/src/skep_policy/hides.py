"""What the worker can neither read nor write: the built-in credential set, less what is granted, and what the policy
hides.

Order of who wins: a policy's `hide` always counts; a built-in entry counts unless a grant names it exactly. A grant of
something inside an entry keeps the rest of the entry hidden, neighbour by neighbour; a grant of a folder above an entry
does not open the entry, since nobody who grants `~/.config` means the tokens in it.

What cannot be hidden together with what must stay reachable is refused by name, never resolved by guessing.
"""

from __future__ import annotations

import stat

from .boundary import Access, PathRule, Watched, below, by_path, deepest
from .builtin import hidden_entries
from .errors import PolicyError
from .layers import BUILT_IN, Entry
from .paths import Place
from .patterns import MAX_MATCHES
from .scope import Grant, Scope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINKS_LOOKED = 1000
"""Entries of one hidden folder that are looked at for links out of it."""

_SYSTEM = ("/usr", "/bin", "/lib", "/proc", "/dev", "/sys")
"""Without these nothing runs; hiding one of them, or a folder above, is a mistake."""

_PRIVATE = ("/tmp", "/var/tmp", "/run")
"""The worker has its own of these in any case."""


def hides(scope: Scope) -> tuple[list[PathRule], list[Watched]]:
    """The hidden paths, parents before children, and those that are absent where the worker could make them. Raises
    PolicyError.
    """
    found = [*_built_in(scope), *_of_policy(scope)]
    present = [rule for rule in found if rule.kind != "absent"]
    present += [rule for parent in present if parent.kind == "dir" for rule in _linked(parent, scope)]
    for rule in present:
        _refuse_conflicts(rule, scope)
    absent = [rule for rule in found if rule.kind == "absent"]
    watched = [Watched(rule.path, rule.reason, True) for rule in absent if scope.covered(rule.path)]
    kept = [rule for rule in absent if not scope.covered(rule.path) and (scope.absent_too or rule.source != BUILT_IN)]
    return _outermost([*present, *kept], scope), watched


def _built_in(scope: Scope) -> Iterator[PathRule]:
    listed: dict[str, frozenset[str] | None] = {}
    for top, entries in hidden_entries(scope.facts).items():
        for name, reason in entries.items():
            path = f"{top}/{name}"
            folder, _, last = path.rpartition("/")
            if folder not in listed:
                above, _, its_name = folder.rpartition("/")
                around = listed.get(above)
                absent = around is not None and its_name.casefold() not in around
                listed[folder] = frozenset() if absent else _names(folder, scope)
            here = listed[folder]
            if here is None or scope.absent_too or last.casefold() in here:
                yield from _entry(path, reason, scope)


def _names(folder: str, scope: Scope) -> frozenset[str] | None:
    """What stands in a folder, in lower case as some file systems see it, so that the many entries that do not need no
    look of their own; None where that cannot be told, or where a root covers it and what is absent has to be watched.
    """
    place = scope.tree.place(folder or "/")
    if place.blocked or scope.covered(place.path):
        return None
    if place.kind == "absent":
        return frozenset()
    return frozenset([name.casefold() for name in scope.tree.names(place.path)]) or None


def _entry(path: str, reason: str, scope: Scope) -> Iterator[PathRule]:
    place = scope.tree.place(path)
    if stat.S_ISCHR(place.mode) or stat.S_ISBLK(place.mode):  # HISTFILE=/dev/null
        return
    if place.blocked and any(below(root.path, place.path) for root in scope.own):
        return
    if any(grant.names(path, place) for grant in scope.grants):
        return
    inside = [grant for grant in scope.grants if grant.inside(path, place) and grant.place.kind != "absent"]
    if inside and place.kind == "dir":
        yield from _neighbours(place.path, inside, reason, scope)
    else:
        yield PathRule(place.path, Access.HIDDEN, place.kind, reason)


def _neighbours(folder: str, grants: list[Grant], reason: str, scope: Scope) -> Iterator[PathRule]:
    """Everything in a folder but what is granted and the way to it."""
    names = scope.tree.names(folder)
    if len(names) > MAX_MATCHES:
        raise scope.error(
            grants[0].entry, f"more than {MAX_MATCHES} entries beside it in {folder}; grant {folder} instead"
        )
    for name in names:
        path = f"{folder}/{name}"
        place = scope.tree.place(path)
        if place.kind == "absent" or place.path != path or any(grant.names(path, place) for grant in grants):
            continue  # a link leads out, and what it leads to was never hidden by this entry
        inside = [grant for grant in grants if grant.inside(path, place)]
        if inside:
            yield from _neighbours(path, inside, reason, scope)
        else:
            yield PathRule(path, Access.HIDDEN, place.kind, reason)


def _of_policy(scope: Scope) -> Iterator[PathRule]:
    for entry in scope.effective.of("filesystem.hide"):
        for place in scope.places(entry):
            if place.path in _PRIVATE:
                scope.notes.append(f"{entry.source}: hide {entry.value}: the worker has its own {place.path} anyway")
            elif not below(place.path, "/dev"):
                yield PathRule(place.path, Access.HIDDEN, place.kind, f"hidden by {entry.value}", entry.source)


def _linked(hidden: PathRule, scope: Scope) -> Iterator[PathRule]:
    """What the entries of a hidden folder link to elsewhere in the home folder, where dotfile managers keep the
    real ones.
    """
    for name in scope.tree.names(hidden.path)[:MAX_LINKS_LOOKED]:
        path = f"{hidden.path}/{name}"
        if not scope.tree.is_link(path):
            continue
        try:
            place = scope.tree.place(path)
        except PolicyError:
            continue  # a cycle leads to nothing
        outside = not below(place.path, hidden.path) and below(place.path, scope.home)
        holds_root = any(below(root.path, place.path) for root in scope.roots())
        if place.kind != "absent" and outside and not holds_root and not below(scope.home, place.path):
            yield PathRule(place.path, Access.HIDDEN, place.kind, f"{hidden.reason} (linked)", hidden.source)


def _refuse_conflicts(rule: PathRule, scope: Scope) -> None:
    system = next((path for path in _SYSTEM if below(path, rule.path)), None)
    if system:
        raise _conflict(rule, f"hiding {rule.path} would hide {system}, which every program needs; hide less")
    for root in scope.own:
        if root.path == rule.path:
            raise _conflict(rule, f"{rule.path} is hidden ({rule.reason}) and is {root.reason} too; {_fix(rule)}")
    state = scope.tree.place(scope.facts.state_dir).path
    if rule.source == BUILT_IN and rule.path != state and below(scope.workspace, rule.path):
        raise _conflict(rule, f"the workspace {scope.workspace} is inside {rule.path} ({rule.reason}); {_fix(rule)}")
    for root in scope.operators:
        if below(root.path, rule.path):
            raise PolicyError(
                f"{root.path} cannot be writable: {rule.path} is hidden ({rule.reason}); {_fix(rule)}",
                source=root.source,
                key="filesystem.write",
            )


def _conflict(rule: PathRule, problem: str) -> PolicyError:
    return PolicyError(problem, source=None if rule.source == BUILT_IN else rule.source, key="filesystem.hide")


def _fix(rule: PathRule) -> str:
    return f"--grant {rule.path} opens it" if rule.source == BUILT_IN else "hide less"


def _outermost(rules: list[PathRule], scope: Scope) -> list[PathRule]:
    """The rules without those that another covers anyway, parents first. One that stands inside a root inside another
    hidden folder is needed.
    """
    by = by_path(rules)
    roots = by_path(scope.roots())
    kept: list[PathRule] = []
    for path in sorted(by):
        outer = deepest(by, path.rpartition("/")[0] or "/") if path != "/" else None
        root = deepest(roots, path)
        if outer is None or (root is not None and below(root.path, outer.path)):
            kept.append(by[path])
    return kept


def refuse_hidden(entry: Entry, place: Place, rules: dict[str, PathRule], scope: Scope) -> None:
    """Raise PolicyError when a socket or device that is let in stands in a hidden folder."""
    rule = deepest(rules, place.path)
    if rule is not None:
        raise scope.error(entry, f"{place.path} is inside {rule.path}, which is hidden ({rule.reason}); {_fix(rule)}")
