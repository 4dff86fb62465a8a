"""Linux backend of skep: a boundary compiled to Bubblewrap, a seccomp filter and a guarded process tree."""

from __future__ import annotations

from .compile import compile
from .errors import BackendUnavailable
from .facts import HostFacts
from .find import find_bwrap
from .session import Outcome, run
from .spawn import Ended, Sandbox, spawn

__all__ = [
    "BackendUnavailable",
    "Ended",
    "HostFacts",
    "Outcome",
    "Sandbox",
    "compile",
    "find_bwrap",
    "run",
    "spawn",
]
