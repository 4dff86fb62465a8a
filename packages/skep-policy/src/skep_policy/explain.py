"""Why something is allowed or not, by the very functions that enforce it."""

from __future__ import annotations

import msgspec

from .boundary import Access, Boundary, Watched, below
from .errors import MalformedHost
from .hosts import is_address, parse_target
from .layers import Effective
from .paths import Tree, expand
from .verdict import MALFORMED

DEFAULT_READABLE = "read: nothing hides it, and no writable root covers it"
NOT_THERE = "; it does not exist, and is hidden from the first launch that finds it"
NOT_LISTED = 'hidden: read = "minimal" does not list it'


class Explanation(msgspec.Struct, frozen=True):
    """`allow` says whether a host may be reached, or whether a path may be read at all; `reason` is a word of the
    verdict vocabulary for a host, and "write", "read" or "hidden" with the reason behind a colon for a path.
    """

    target: str
    allow: bool
    rule: str | None
    reason: str
    source: str | None


def explain_host(effective: Effective, text: str) -> Explanation:
    """The verdict on `host`, `host:port` or `[v6]:port`, port 443 where none is given.

    A name is not resolved, so one that leads to a private address is found out only when it is dialled; `localhost` and
    what is below it are loopback without asking (RFC 6761). With an allow-all and no deny there is no proxy, and so
    nothing that guards private addresses.
    """
    rules = effective.rules()
    try:
        target = parse_target(text)
    except MalformedHost:
        return Explanation(text, False, None, MALFORMED, None)
    verdict = rules.decide(target.host, target.port)
    loopback = target.host == "localhost" or target.host.endswith(".localhost")
    if (loopback or is_address(target.host)) and rules.mode != "open":
        verdict = rules.check_address(verdict, "127.0.0.1" if loopback else target.host)
    host = f"[{target.host}]" if ":" in target.host else target.host
    return Explanation(f"{host}:{target.port}", verdict.allow, verdict.rule, verdict.reason, verdict.source)


def explain_path(boundary: Boundary, text: str) -> Explanation:
    """What the worker may do at a path: relative to its folder, `~` its home, links followed as the worker would see
    them. What does not exist and would be hidden is told so when the boundary was resolved with `absent_too`. Raises
    PolicyError for a cycle of links.
    """
    place = Tree(boundary.mapped).place(expand(text, base=boundary.cwd, home=boundary.home))
    if place.blocked:
        parts = expand(text, base=boundary.cwd, home=boundary.home).split("/")
        path = "/" + "/".join(part for part in parts if part not in ("", "."))
        return Explanation(
            path, False, None, f"hidden: {place.path} may not be searched by you, nor by the worker", None
        )
    access, rule = boundary.rule_for(place.path)
    if rule is not None:
        reason = f"{access.name.lower()}: {rule.reason}"
        if access == Access.HIDDEN and rule.kind == "absent":
            reason += NOT_THERE
        elif access == Access.WRITE and (watched := _watched(boundary, place.path)):
            reason += f"; looked at afterwards: {watched.reason}"
        return Explanation(place.path, access != Access.HIDDEN, rule.path, reason, rule.source)
    hidden = access == Access.HIDDEN
    return Explanation(place.path, not hidden, None, NOT_LISTED if hidden else DEFAULT_READABLE, None)


def _watched(boundary: Boundary, path: str) -> Watched | None:
    """What is looked for after the launch at a path or above it; the deepest such."""
    found = [watched for watched in boundary.watched if below(path, watched.path)]
    return max(found, key=lambda watched: len(watched.path), default=None)
