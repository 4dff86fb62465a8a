"""Boundaries and hosts to compile, as values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skep_bwrap import HostFacts
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules

HOME = "/home/u"
REPO = "/home/u/repo"

FACTS = HostFacts(
    interpreter="/usr/bin/python3.11",
    prefix="/usr",
    shim="/usr/lib/python3/dist-packages/skep_netshim/shim.py",
    machine="x86_64",
    hostname="box",
    namespaces={name: f"{name}:[4026531835]" for name in ("ipc", "mnt", "net", "pid", "user", "uts")},
    sockets=(),
    run_kept=(),
    links={"/bin": "usr/bin", "/lib": "usr/lib"},
    resolv_conf="/etc/resolv.conf",
    hosts="/etc/hosts",
)


def root(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.WRITE, kind)


def protect(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.READ, kind)


def hide(path: str, kind: Any = "dir") -> PathRule:
    return PathRule(path, Access.HIDDEN, kind)


def boundary(*, roots: Iterable[PathRule] = (root(REPO),), allow: Iterable[str] = (), **given: Any) -> Boundary:
    values: dict[str, Any] = {
        "workspace": REPO,
        "cwd": REPO,
        "home": HOME,
        "uid": 1000,
        "gid": 1000,
        "protects": (),
        "hides": (),
        "reads": (),
        "watched": (),
        "mapped": {},
        "read": "host",
        "devices": (),
        "sockets": (),
        "rules": Rules.build(allow),
        "env": {"PATH": "/usr/bin:/bin"},
        "limits": Limits(),
    }
    return Boundary(roots=tuple(roots), **{**values, **given})
