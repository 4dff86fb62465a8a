"""macOS backend of skep: a policy compiled to a Seatbelt profile."""

from __future__ import annotations

from .compile import PROXY_USER, SANDBOX_EXEC, Proxy, compile, layers, worker_environment
from .denials import Denial, advise, collect, log_command, matters, parse_line, remedy
from .errors import BackendUnavailable
from .facts import settle
from .keys import KEYS, Unenforceable, refuse
from .mapping import at_their_place
from .probe import Check, Probe, blocker, in_sandbox, probe
from .relay import Terminal
from .sbpl import ProfileError
from .session import Outcome, run
from .spawn import Ended, Sandbox, first_program, listening, new_tag, new_token, spawn

__all__ = [
    "KEYS",
    "PROXY_USER",
    "SANDBOX_EXEC",
    "BackendUnavailable",
    "Check",
    "Denial",
    "Ended",
    "Outcome",
    "Probe",
    "ProfileError",
    "Proxy",
    "Sandbox",
    "Terminal",
    "Unenforceable",
    "advise",
    "at_their_place",
    "blocker",
    "collect",
    "compile",
    "first_program",
    "in_sandbox",
    "layers",
    "listening",
    "log_command",
    "matters",
    "new_tag",
    "new_token",
    "parse_line",
    "probe",
    "refuse",
    "remedy",
    "run",
    "settle",
    "spawn",
    "worker_environment",
]
