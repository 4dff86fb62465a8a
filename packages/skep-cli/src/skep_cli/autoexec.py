"""The auto-exec surface of a patch: what of it runs by itself once it is in somebody's tree. Data in `autoexec.toml`;
pure.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import msgspec

from .git.trees import EXECUTABLE, LINK, Change


class Surface(msgspec.Struct, frozen=True):
    """A path of a patch and why it wants a second look."""

    path: str
    reason: str


class Pattern(msgspec.Struct, frozen=True):
    """One pattern of the list, compiled. It matches whole paths, case folded."""

    text: str
    expression: str
    reason: str


@cache
def patterns() -> tuple[Pattern, ...]:
    """The list, in its order."""
    data = tomllib.loads((files("skep_cli") / "autoexec.toml").read_text("utf-8"))
    return tuple(
        Pattern(text, _expression(text), entry["reason"]) for entry in data["surface"] for text in entry["patterns"]
    )


def _expression(text: str) -> str:
    """The regular expression of a pattern; see the head of the list."""
    body = "[^/]*".join(re.escape(part) for part in text.rstrip("/").split("*"))
    anywhere = "" if "/" in text.rstrip("/") else "(?:.*/)?"
    return anywhere + body + ("/.*" if text.endswith("/") else "")


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern.expression, re.IGNORECASE | re.DOTALL), pattern.reason) for pattern in patterns())


def reason_for(path: str) -> str | None:
    """Why something may run or obey this path by itself; None when nothing is known to."""
    return next((reason for expression, reason in _compiled() if expression.fullmatch(path)), None)


def surface(changes: Iterable[Change]) -> list[Surface]:
    """What of these changes is auto-exec surface, newly executable, or a link, in the order given. Deletions count by
    name too: a hook that is gone is a check that no longer runs.
    """
    found: list[Surface] = []
    for change in changes:
        reason = reason_for(change.path)
        if reason:
            found.append(Surface(change.path, reason))
        elif change.new is not None and change.new.mode == LINK:
            found.append(Surface(change.path, "a link: look where it leads"))
        elif _newly_executable(change):
            found.append(Surface(change.path, "newly executable"))
    return found


def _newly_executable(change: Change) -> bool:
    if change.new is None or change.new.mode != EXECUTABLE:
        return False
    return change.old is None or change.old.mode != EXECUTABLE


def leads_out(path: str, target: str) -> bool:
    """Whether a link at `path` with that target leaves the tree."""
    if target.startswith("/"):
        return True
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False
