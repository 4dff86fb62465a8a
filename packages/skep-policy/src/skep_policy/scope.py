"""What one resolution works on: the policy, the facts, the file system, and the roots once they are known."""

from __future__ import annotations

from .boundary import PathRule, below, by_path, deepest
from .errors import PolicyError
from .facts import Facts
from .layers import Effective, Entry
from .paths import Place, Tree, expand
from .patterns import is_pattern, matches
from .value import Value


class Grant(Value):
    """One `grant`: where it was written, its path as written made absolute, and what that leads to."""

    entry: Entry
    written: str
    place: Place

    def names(self, path: str, place: Place) -> bool:
        """Does it name exactly this path (as written) or what it leads to?"""
        return self.written == path or self.place.path == place.path

    def inside(self, path: str, place: Place) -> bool:
        """Does it name something below?"""
        return not self.names(path, place) and (below(self.written, path) or below(self.place.path, place.path))


class Scope:
    """`own` are the roots a run cannot do without (the workspace, its own folders), `operators` those somebody
    asked for. `absent_too`: what of the built-in hidden set does not exist is listed as well. `apart` are
    the paths where a run's own folders stand, or a layer of it.
    """

    absent_too = False
    apart: tuple[str, ...] = ()

    def __init__(self, effective: Effective, facts: Facts, tree: Tree, workspace: str) -> None:
        self.effective = effective
        self.facts = facts
        self.tree = tree
        self.workspace = workspace
        self.home = tree.place(facts.home).path
        self.homes = [self.home, *(tree.place(home).path for home in facts.other_homes)]
        self.own: list[PathRule] = []
        self.operators: list[PathRule] = []
        self.notes: list[str] = []
        self.grants = [
            Grant(entry, written := self.written(entry), self.tree.place(written))
            for entry in effective.of("filesystem.grant")
        ]

    def roots(self) -> list[PathRule]:
        """All roots, shallow first; of two at one path the first."""
        return sorted(
            by_path([*self.own, *self.operators]).values(), key=lambda rule: (rule.path.count("/"), rule.path)
        )

    def freeze_roots(self) -> None:
        self._roots = by_path(self.roots())

    def covered(self, path: str) -> bool:
        """Is a path writable as far as the roots alone say?"""
        return deepest(self._roots, path) is not None

    def written(self, entry: Entry) -> str:
        """The path of an entry made absolute, `..` and links left, no slash at its end."""
        path = expand(entry.value, base=entry.base or self.facts.cwd, home=self.facts.home)
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))

    def place(self, entry: Entry) -> Place:
        """What the path of an entry leads to. Raises PolicyError with the entry's place in the policy."""
        return self._placed(entry, self.written(entry))

    def places(self, entry: Entry) -> list[Place]:
        """What an entry that may be a pattern leads to; a pattern that matches nothing leads nowhere."""
        written = self.written(entry)
        if not is_pattern(entry.value):
            return [self._placed(entry, written)]
        try:
            return [self._placed(entry, path) for path in matches(written, self.tree)]
        except PolicyError as error:
            raise self.error(entry, error.problem) from None

    def error(self, entry: Entry, problem: str) -> PolicyError:
        return PolicyError(problem, source=entry.source, key=entry.key)

    def _placed(self, entry: Entry, path: str) -> Place:
        try:
            return self.tree.place(path)
        except PolicyError as error:
            raise self.error(entry, error.problem) from None
