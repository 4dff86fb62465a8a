"""Linux backend of skep: a boundary compiled to Bubblewrap, a seccomp filter and a guarded process tree."""

from __future__ import annotations

from .compile import compile
from .errors import BackendUnavailable
from .facts import HostFacts
from .find import find_bwrap
from .session import Outcome, run
from .spawn import Ended, Sandbox, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .probing import Check, Probe, probe

__all__ = [
    "BackendUnavailable",
    "Check",
    "Ended",
    "HostFacts",
    "Outcome",
    "Probe",
    "Sandbox",
    "compile",
    "find_bwrap",
    "probe",
    "run",
    "spawn",
]


def __getattr__(name: str) -> object:
    """What a launch does not need is imported when it is first used."""
    if name in ("Check", "Probe", "probe"):
        from . import probing

        return getattr(probing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
