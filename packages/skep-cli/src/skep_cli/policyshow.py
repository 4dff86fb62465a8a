"""`skep policy show` for people: first what differs from what is built in, and the rest as numbers or, when asked for,
line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skep_policy.boundary import Boundary, PathRule
from skep_policy.enforcement import Key
from skep_policy.layers import BUILT_IN, Effective

from .screen.render import count

NETWORK = {
    "none": "nothing may be reached",
    "filtered": "what `network.allow` lists may be reached, and nothing else",
    "open": "everything may be reached, and nothing is filtered",
}


def brief(
    policy: Effective, boundary: Boundary, enforcement: dict[str, dict[str, Key]], backend: str | None
) -> Iterator[str]:
    """What somebody has set, with what this system makes of it where that is less than it says; the boundary that comes
    of it; and how much of it is built in.
    """
    written = [entry for entry in policy.entries if entry.source != BUILT_IN]
    yield "set:" if written else "set: nothing; all of this is built in"
    for entry in written:
        yield f"  {entry.key} = {entry.value}  ({entry.source})"
        by = enforcement.get(entry.key, {}).get(backend or "")
        if by is not None and by.status != "enforced":
            yield f"    {'refused' if by.status == 'refused' else 'with a limit'} here: {by.how}"
    yield from _withheld(policy)
    yield ""
    yield f"network: {NETWORK[boundary.rules.mode]}"
    yield from _rules("writable", boundary.roots, whole=True)
    yield from _rules("read-only inside these", boundary.protects)
    yield from _rules("hidden", boundary.hides)
    passed = sum(1 for entry in policy.of("env.pass") if entry.source == BUILT_IN)
    yield f"environment: {count(len(boundary.env), 'variable')}; {passed} names are passed, if set, as built in"
    yield ""
    yield "`skep policy show --all` lists what is built in, and how each key is enforced"


def whole(
    policy: Effective, boundary: Boundary, enforcement: dict[str, dict[str, Key]], backend: str | None
) -> Iterator[str]:
    """Every value in force with the layer it comes from, every path, and what each system makes of each key."""
    for entry in policy.entries:
        yield f"{entry.key} = {entry.value}  ({entry.source})"
    yield from _withheld(policy)
    yield ""
    yield f"network: {boundary.rules.mode}"
    for title, rules in (
        ("writable", boundary.roots),
        ("read-only inside these", boundary.protects),
        ("hidden", boundary.hides),
    ):
        yield ""
        yield from _rules(title, rules, whole=True)
    yield ""
    yield f"enforcement (here: {backend or 'none'}):"
    for key, by in enforcement.items():
        yield f"  {key}"
        for name, made in by.items():
            yield f"    {name}: {made.status}: {made.how}"


def _withheld(policy: Effective) -> Iterator[str]:
    if policy.withheld:
        yield "asked for and not granted, until `skep trust`:"
    for entry in policy.withheld:
        yield f"  {entry.key} = {entry.value}  ({entry.source})"


def _rules(title: str, rules: Sequence[PathRule], *, whole: bool = False) -> Iterator[str]:
    shown = [rule for rule in rules if whole or rule.source != BUILT_IN]
    folded = len(rules) - len(shown)
    more = f"{count(folded, 'path')} as built in" if folded else ""
    if not shown:
        yield f"{title}: {more or 'nothing'}"
        return
    yield f"{title}:{f' {more}, and' if more else ''}"
    for rule in shown:
        absent = "; absent" if rule.kind == "absent" else ""
        yield f"  {rule.path}  ({rule.source}{absent}) {rule.reason}"
