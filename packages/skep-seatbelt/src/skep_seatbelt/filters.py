"""Paths as filters: every spelling the kernel might use, and no other."""

from __future__ import annotations

from collections.abc import Iterable

from . import places
from .sbpl import Filter, Literal, Subpath


def subpaths(paths: Iterable[str]) -> tuple[Filter, ...]:
    return tuple(Subpath(name) for path in paths for name in places.spellings(path))


def literals(paths: Iterable[str]) -> tuple[Filter, ...]:
    return tuple(Literal(name) for path in paths for name in places.spellings(path))
