"""Would this profile allow that operation? Answers from the text of a profile, so that printing is under test too.

Written from what is known of the kernel, not from the compiler beside it, so that the two can disagree. Who wins:

1. The operation's own rules decide before the rules of its class (`file-read-data` before `file-read*` before `file*`),
   and those before `default`.
2. Within one of these, the last rule *with a filter* that matches.
3. If none matched, the last rule without a filter, wherever it stands.
4. If there is none, the next wider class.

Public accounts of rule 1 and 3 differ in their words. `Reading.FLAT` is the other plausible reading: the last rule
whose operation covers the one asked about and whose filter, if it has any, matches. `Reading.COMPOUND` is as the first
but for rule 2: of the rules that match, one that does by a `require-all` beats those that do by a plain filter,
wherever they stand, which somebody says to have seen. A profile skep prints must mean the same under all of them; the
tests hold it to that.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import cast

import msgspec

from .reader import Raw, Symbol, UnreadableProfile, read


class Reading(enum.Enum):
    """How the precedence of rules is read."""

    LAYERED = "layered"
    FLAT = "flat"
    COMPOUND = "compound"


class Query(msgspec.Struct, frozen=True):
    """An operation and what it is about. A filter over something the query does not have never matches.

    `remote` and `local` are (host, port) with the host "localhost" for any loopback address. `names` holds operands by
    the filter that would test them (`global-name`, `sysctl-name`, `target`, `extension`...).
    """

    operation: str
    path: str | None = None
    remote: tuple[str, int] | None = None
    local: tuple[str, int] | None = None
    names: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """`rule` counts the rules of the profile from 0, as they stand."""

    allow: bool
    rule: int


class _Rule(msgspec.Struct, frozen=True):
    index: int
    allow: bool
    operations: tuple[str, ...]
    filters: tuple[list[object], ...]


class Profile:
    """A profile that was read. `unknown` are operations this macOS does not have: guarded rules about them are void."""

    def __init__(self, text: str, *, unknown: frozenset[str] = frozenset()) -> None:
        forms = read(text)
        if not forms or forms[0] != [Symbol("version"), Symbol("1")]:
            raise UnreadableProfile("a profile begins with (version 1)")
        self.rules = tuple(_rules(forms[1:], unknown))
        self._own: dict[str, list[_Rule]] = {}
        self._flat: dict[str, list[_Rule]] = {}
        for rule in reversed(self.rules):
            for name in rule.operations:
                self._own.setdefault(name, []).append(rule)

    def decide(self, query: Query, *, reading: Reading = Reading.LAYERED) -> Answer:
        """What the profile says. Raises UnreadableProfile for a filter this evaluator does not know."""
        if reading is Reading.FLAT:
            for rule in self._covering(query.operation):
                if _applies(rule, query):
                    return Answer(rule.allow, rule.index)
            return Answer(False, -1)
        for name in classes(query.operation):
            own = self._own.get(name, ())  # the last first
            matching = (rule for rule in own if rule.filters and _applies(rule, query))
            found = next(matching, None)
            if found is not None and reading is Reading.COMPOUND:
                found = next((rule for rule in (found, *matching) if _applies_by_all(rule, query)), found)
            if found is not None:
                return Answer(found.allow, found.index)
            for rule in own:
                if not rule.filters:
                    return Answer(rule.allow, rule.index)
        return Answer(False, -1)

    def _covering(self, operation: str) -> list[_Rule]:
        """The rules about it or a class that contains it, the last first."""
        if operation not in self._flat:
            found = [rule for name in classes(operation) for rule in self._own.get(name, ())]
            self._flat[operation] = sorted(found, key=lambda rule: -rule.index)
        return self._flat[operation]

    def allows(self, operation: str, path: str | None = None, **names: str) -> bool:
        """`decide` for the common case; the keywords are filters with underscores for dashes."""
        operands = {name.replace("_", "-"): value for name, value in names.items()}
        return self.decide(Query(operation, path, names=operands)).allow


def classes(operation: str) -> list[str]:
    """The operation, every class that contains it from narrow to wide, and `default`."""
    found = [operation]
    words = operation.rstrip("*").split("-")
    for count in range(len(words), 0, -1):
        name = "-".join(words[:count]) + "*"
        if name not in found:
            found.append(name)
    return [*found, "default"]


def _rules(forms: list[object], unknown: frozenset[str]) -> Iterator[_Rule]:
    index = 0
    for form in forms:
        form = _unguarded(form, unknown)
        if form is None:
            continue
        action, *rest = _list(form)
        if action not in (Symbol("allow"), Symbol("deny")):
            raise UnreadableProfile(f"not a rule: {action!r}")
        operations: list[str] = []
        filters: list[list[object]] = []
        for part in rest:
            if isinstance(part, Symbol):
                operations.append(part)
            elif _list(part)[0] != Symbol("with"):
                filters.append(_list(part))
        if not operations or not unknown.isdisjoint(operations):
            raise UnreadableProfile(f"a rule about no operation this system has: {operations}")
        yield _Rule(index, action == Symbol("allow"), tuple(operations), tuple(filters))
        index += 1


def _unguarded(form: object, unknown: frozenset[str]) -> object | None:
    """The rule in `(if (defined? 'NAME) RULE)`, None when the name is not defined; any other form as it is."""
    parts = _list(form)
    if parts[0] != Symbol("if"):
        return form
    match parts[1:]:
        case [[Symbol("defined?"), [Symbol("quote"), Symbol() as name]], inner]:
            return None if name in unknown else inner
        case _:
            raise UnreadableProfile(f"not a guard: {form!r}")


def _list(form: object) -> list[object]:
    if not isinstance(form, list) or not form or not isinstance(form[0], Symbol):
        raise UnreadableProfile(f"not a form: {form!r}")
    return cast("list[object]", form)


def _applies(rule: _Rule, query: Query) -> bool:
    return not rule.filters or any(_matches(one, query) for one in rule.filters)


def _applies_by_all(rule: _Rule, query: Query) -> bool:
    return any(one[0] == Symbol("require-all") and _matches(one, query) for one in rule.filters)


def _matches(form: list[object], query: Query) -> bool:
    path = query.path
    match form:
        case [Symbol("literal"), str() as wanted]:
            return path == wanted
        case [Symbol("subpath"), str() as wanted]:
            return path is not None and (path == wanted or path.startswith(wanted.rstrip("/") + "/"))
        case [Symbol("require-all"), *inner]:
            return all(_matches(_list(one), query) for one in inner)
        case [Symbol("require-any"), *inner]:
            return any(_matches(_list(one), query) for one in inner)
        case [Symbol("require-not"), inner]:
            return not _matches(_list(inner), query)
        case [Symbol("regex"), Raw() as wanted]:
            # The kernel's expressions have no `(?`; a profile that used one would be inert there.
            if "(?" in wanted:
                raise UnreadableProfile(f"an expression the kernel does not know: {wanted}")
            return path is not None and re.search(wanted, path) is not None
        case [Symbol("remote" | "local") as end, Symbol("ip"), str() as wanted]:
            return _meets(wanted, query.remote) if end == "remote" else _meets_local(wanted, query.local)
        case [Symbol("vnode-type" | "target" | "socket-domain" | "socket-protocol") as name, Symbol() as wanted]:
            return query.names.get(name) == wanted
        case [Symbol() as name, str() as wanted] if name.endswith("-prefix"):
            return query.names.get(name.removesuffix("-prefix"), "\0").startswith(wanted)
        case [Symbol() as name, str() as wanted] if name in _BY_NAME:
            return query.names.get(name) == wanted
        case _:
            raise UnreadableProfile(f"not a filter: {form!r}")


_BY_NAME = frozenset(
    (*("extension", "global-name", "local-name", "ipc-posix-name", "preference-domain", "sysctl-name"),)
)


def _meets(wanted: str, end: tuple[str, int] | None) -> bool:
    host, _, port = wanted.partition(":")
    if host not in ("localhost", "*"):
        # One such host makes macOS refuse the profile whole.
        raise UnreadableProfile(f"a host that is neither * nor localhost: {wanted}")
    return end is not None and host in ("*", end[0]) and port in ("*", str(end[1]))


def _meets_local(wanted: str, end: tuple[str, int] | None) -> bool:
    """In a local filter `localhost` is every address of this machine, the wildcard included (measured on 14 and 15)."""
    return _meets(wanted, end and ("localhost", end[1]))
