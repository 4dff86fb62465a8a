"""macOS backend of skep: a policy compiled to a Seatbelt profile."""

from __future__ import annotations

from .compile import PROXY_USER, SANDBOX_EXEC, Proxy, compile, layers, worker_environment
from .denials import Denial, advise, collect, log_command, parse_line
from .errors import BackendUnavailable
from .facts import settle
from .keys import KEYS, Key, Unenforceable, refuse
from .probe import Check, Probe, in_sandbox, probe
from .relay import Terminal
from .sbpl import ProfileError
from .spawn import Ended, Sandbox, first_program, listening, new_tag, new_token, spawn

__all__ = [
    "KEYS",
    "PROXY_USER",
    "SANDBOX_EXEC",
    "BackendUnavailable",
    "Check",
    "Denial",
    "Ended",
    "Key",
    "Probe",
    "ProfileError",
    "Proxy",
    "Sandbox",
    "Terminal",
    "Unenforceable",
    "advise",
    "collect",
    "compile",
    "first_program",
    "in_sandbox",
    "layers",
    "listening",
    "log_command",
    "new_tag",
    "new_token",
    "parse_line",
    "probe",
    "refuse",
    "settle",
    "spawn",
    "worker_environment",
]
