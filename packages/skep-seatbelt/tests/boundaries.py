"""Boundaries to compile, as a Mac would have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules
from skep_seatbelt import Proxy, compile
from skep_seatbelt.evaluate import Profile

HOME = "/Users/u"
REPO = "/Users/u/repo"
SCRATCH = "/private/var/folders/zz/t0/T/skep-1"
TAG = "skep-0123abcd"
PROXY = Proxy(3128, "t0ken")
PYTHON = "/opt/homebrew/bin/python3.13"
SHIM = "/opt/homebrew/lib/skep_seatbelt/shim.py"


def root(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.WRITE, kind)


def protect(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.READ, kind)


def hide(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.HIDDEN, kind)


def boundary(
    *, roots: Iterable[PathRule] = (root(REPO), root(SCRATCH)), allow: Iterable[str] = (), **given: Any
) -> Boundary:
    values: dict[str, Any] = {
        "workspace": REPO,
        "cwd": REPO,
        "home": HOME,
        "uid": 501,
        "gid": 20,
        "protects": (),
        "hides": (),
        "reads": (),
        "watched": (),
        "mapped": {},
        "read": "host",
        "devices": (),
        "sockets": (),
        "rules": Rules.build(allow, given.pop("deny", ())),
        "env": {"PATH": "/usr/bin:/bin", "TMPDIR": SCRATCH},
        "limits": Limits(),
    }
    return Boundary(roots=tuple(roots), **{**values, **given})


def launch(one: Boundary, **given: Any):
    values: dict[str, Any] = {"tag": TAG, "python": PYTHON, "shim": SHIM, "proxy": PROXY}
    return compile(one, ["make", "test"], **{**values, **given})


def profile(one: Boundary, *, unknown: frozenset[str] = frozenset(), **given: Any) -> Profile:
    return Profile(launch(one, **given).evidence, unknown=unknown)
