"""What the worker may read but not write although a root covers it, and what is watched for since it is not there.

- what the policy protects, wherever it leads, if a root covers that;
- the built-in set of what the host runs by itself, at the top of every root, at any depth of the workspace, and in
  the home folder where a root covers it, less what a grant names exactly;
- folders on the caller's PATH, but those of the project itself, less what a grant names exactly;
- what skep itself runs from;
- git's own files (`git`).

A link is protected at what it leads to; the link itself stands in a writable folder and can be replaced, so it is
listed with its text for the look afterwards.
"""

from __future__ import annotations

from .boundary import OWN_CODE, Access, PathRule, Watched, below, by_path, deepest
from .builtin import home_entries, project_entries
from .errors import PolicyError
from .git import Guarding
from .layers import BUILT_IN
from .othernames import TooMany, other_names, shared
from .paths import Place
from .patterns import MAX_FOLDERS, UNSEEN, survey
from .scope import Scope

RUN_FOLDER = "the run's own folder"
"""The reason of a root nobody works in: results and scratch are looked at by no editor."""
ON_PATH = "programs of the host are looked for there"


class Protects:
    """The protects of one resolution. `in_place` says that the workspace is the user's own tree, not a run's copy."""

    def __init__(self, scope: Scope, *, in_place: bool) -> None:
        self.scope = scope
        self.in_place = in_place
        self.rules: list[PathRule] = []
        self.watched: list[Watched] = []
        self.links: dict[str, str] = {}
        self.known: list[str] = []
        self.git = Guarding(
            scope.tree,
            allow=bool(scope.effective.value("filesystem.git")),
            source=scope.effective.source("filesystem.git"),
            home=scope.facts.home,
            uid=scope.facts.uid,
            covered=scope.covered,
        )

    def collect(self) -> None:
        """Fill rules, watched and links. Raises PolicyError."""
        self._policy()
        self._code()
        self._search_path()
        tops = [root.path for root in (*self.scope.own, *self.scope.operators) if self._is_project(root)]
        entries = project_entries()
        for top in dict.fromkeys(tops):
            for name, reason in entries.items():
                self._built_in(f"{top}/{name}", reason)
            self._git_top(top)
        for name, reason in home_entries().items():
            for home in self.scope.homes:
                if self.scope.covered(f"{home}/{name}"):
                    self._built_in(f"{home}/{name}", reason)
        if self.in_place:
            self._nested(entries)
        self._user_git()
        self.rules += self.git.guard.protects
        self.watched += self.git.guard.watched
        self.links.update(self.git.guard.links)
        self.rules = _outermost(self.rules)
        if self.in_place:
            self._other_names()
        self.watched = _once(self.watched)
        self._refuse_conflicts()

    def _is_project(self, root: PathRule) -> bool:
        """Is it the workspace, or a folder the operator opened?"""
        return root.kind == "dir" and root.reason != RUN_FOLDER

    def _policy(self) -> None:
        for entry in self.scope.effective.of("filesystem.protect"):
            reason = f"protected by {entry.value}"
            for place in self.scope.places(entry):
                self._note_links(place)
                if place.kind == "absent":
                    self._watch(place.path, reason)
                elif self.scope.covered(place.path):
                    self.rules.append(PathRule(place.path, Access.READ, place.kind, reason, entry.source))

    def _code(self) -> None:
        """In the user's own tree the next launch would run on the host what this worker has put there."""
        facts = self.scope.facts
        for path in filter(None, (facts.python, *facts.code)):
            place = self.scope.tree.place(path)
            if place.kind == "absent" or not self._is_hosts(place.path):
                continue
            inside = path != facts.python and any(below(root.path, place.path) for root in self.scope.roots())
            if inside or self.scope.covered(place.path):
                self.rules.append(PathRule(place.path, Access.READ, place.kind, OWN_CODE))

    def _search_path(self) -> None:
        """A project's own folders on PATH (`.venv/bin`, `node_modules/.bin`) are the worker's to fill."""
        project = not any(below(home, self.scope.workspace) for home in self.scope.homes)
        for folder in self.scope.facts.environ.get("PATH", "").split(":"):
            path = self.scope.tree.place(folder).path if folder.startswith("/") else ""
            own = project and below(path, self.scope.workspace)
            if self.scope.covered(path) and self._is_hosts(path) and not own:
                self._built_in(folder, ON_PATH)

    def _is_hosts(self, path: str) -> bool:
        """Is it the host's own that is written, and no copy or layer of a run?"""
        return not any(below(path, seen) for seen in self.scope.apart)

    def _built_in(self, path: str, reason: str) -> None:
        place = self.scope.tree.place(path)
        if self._granted(path, place):
            return
        self._note_links(place)
        if place.kind == "absent":
            self._watch(place.path, reason)
        elif self.scope.covered(place.path):
            self.rules.append(PathRule(place.path, Access.READ, place.kind, reason))

    def _granted(self, path: str, place: Place) -> bool:
        for grant in self.scope.grants:
            if grant.names(path, place):
                if path.endswith("/skep.toml"):
                    raise self.scope.error(
                        grant.entry, f"{path} cannot be granted: the worker's own policy would be its to write"
                    )
                return True
            if place.kind == "dir" and grant.inside(path, place):
                raise self.scope.error(
                    grant.entry, f"{grant.written} is inside {path}, which is protected as a whole; grant {path}"
                )
        return False

    def _git_top(self, top: str) -> None:
        dot = f"{top}/.git"
        for grant in self.scope.grants:
            if below(grant.written, dot):
                raise self.scope.error(grant.entry, f"{grant.written} cannot be granted; --git lets the worker commit")
        if top == self.scope.workspace and self.git.allow and self.scope.tree.place(dot).kind == "absent":
            self.git.above(top)
        self.git.top(top)

    def _nested(self, entries: dict[str, str]) -> None:
        seen = survey(self.scope.workspace, frozenset(entries) | {".git"}, self.scope.tree, limit=MAX_FOLDERS)
        if not seen.complete:
            self.scope.notes.append(
                f"only {MAX_FOLDERS} folders of {self.scope.workspace} were looked into for nested repositories and "
                f"files the host runs by itself; what is deeper is not protected"
            )
        for folder, name in seen.entries:
            if name == ".git":
                self.git.work_tree(folder, open_outside=False)
            else:
                self._built_in(f"{folder}/{name}", entries[name])
        for folder in seen.bare:
            self.git.bare(folder)
        self.known = sorted({*seen.paths(), *seen.closed, *(() if seen.complete else (UNSEEN,))})

    def _user_git(self) -> None:
        config = self.scope.facts.xdg("CONFIG")
        self.git.user_configuration(
            [f"{self.scope.facts.home}/.gitconfig", f"{config}/git/config"], self.scope.workspace
        )

    def _other_names(self) -> None:
        """What is protected is so by every name in the roots, but for skep's own code, which has but one."""
        rules = by_path([rule for rule in self.rules if rule.reason != OWN_CODE])
        roots = [root.path for root in self.scope.roots() if root.kind == "dir" and self._is_hosts(root.path)]
        try:
            files = shared(path for path in rules if self._is_hosts(path))
            for path, known in other_names(files, roots, without=rules):
                if path not in rules and (rule := deepest(rules, known)) is not None:
                    self.rules.append(
                        PathRule(path, Access.READ, "file", f"{rule.reason}, of which it is another name")
                    )
        except TooMany:
            self.scope.notes.append(
                "there is more in protected folders or the writable roots than is looked at: a protected file that has "
                "another name (a hard link) may be written by that"
            )

    def _watch(self, path: str, reason: str) -> None:
        if self.scope.covered(path):
            self.watched.append(Watched(path, reason))

    def _note_links(self, place: Place) -> None:
        self.links.update({link: text for link, text in place.links if self.scope.covered(link)})

    def _refuse_conflicts(self) -> None:
        rules = by_path(self.rules)
        for root in self.scope.own:
            rule = deepest(rules, root.path)
            if rule is not None:
                if rule.reason == OWN_CODE:
                    raise PolicyError(
                        f"{root.path}, {root.reason}, cannot be writable, since skep itself runs from {rule.path}; "
                        "install skep elsewhere (`uv tool install skep-cli`)"
                    )
                problem = f"protecting {rule.path} ({rule.reason}) would make {root.path}, {root.reason}, read-only"
                source = None if rule.source == BUILT_IN else rule.source
                raise PolicyError(f"{problem}; protect less", source=source, key="filesystem.protect")
        for root in self.scope.operators:
            rule = deepest(rules, root.path)
            if rule is not None:
                opens = rule.source == BUILT_IN and rule.reason != OWN_CODE
                fix = f"; --grant {rule.path} opens it" if opens else ""
                self.scope.notes.append(
                    f"{root.source}: {root.path} stays read-only: {rule.path} is protected ({rule.reason}){fix}"
                )


def _outermost(rules: list[PathRule]) -> list[PathRule]:
    """The rules without those that another covers anyway, parents first."""
    by = by_path(rules)
    return [by[path] for path in sorted(by) if deepest(by, path.rpartition("/")[0] or "/") is None]


def _once(watched: list[Watched]) -> list[Watched]:
    """Each path once, to be quarantined if any reason asks for it."""
    found: dict[str, Watched] = {}
    for item in watched:
        known = found.get(item.path)
        if known is None or (item.quarantine and not known.quarantine):
            found[item.path] = item
    return [found[path] for path in sorted(found)]
