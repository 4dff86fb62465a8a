"""What a sandboxed worker may do: policy types, loading, layering and decisions. Pure.

Names are imported when they are first used: a proxy that only decides does not pay for loading a policy.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .address import classify
    from .aftermath import appeared
    from .boundary import Access, Boundary, PathRule, Watched
    from .checks import check
    from .errors import MalformedHost, PolicyError
    from .events import Closed, Decision, EgressEvent
    from .explain import Explanation, explain_host, explain_path
    from .facts import Facts
    from .hosts import Target, canonical_host, is_address, parse_target
    from .launch import Launch
    from .layers import Effective, Entry, Layer, built_in, merge
    from .load import load_policy, parse_policy
    from .policy import Env, Filesystem, Limits, Network, Policy, Verify, Worker
    from .report import Egress, Finding, Report
    from .resolution import resolve
    from .rule import Rule, parse_rule
    from .rules import Rules
    from .schema import json_schema
    from .trust import TrustStore
    from .units import parse_duration, parse_size
    from .value import replace
    from .verdict import Verdict

__all__ = [
    "Access",
    "Boundary",
    "Closed",
    "Decision",
    "Effective",
    "Egress",
    "EgressEvent",
    "Entry",
    "Env",
    "Explanation",
    "Facts",
    "Filesystem",
    "Finding",
    "Launch",
    "Layer",
    "Limits",
    "MalformedHost",
    "Network",
    "PathRule",
    "Policy",
    "PolicyError",
    "Report",
    "Rule",
    "Rules",
    "Target",
    "TrustStore",
    "Verdict",
    "Verify",
    "Watched",
    "Worker",
    "appeared",
    "built_in",
    "canonical_host",
    "check",
    "classify",
    "explain_host",
    "explain_path",
    "is_address",
    "json_schema",
    "load_policy",
    "merge",
    "parse_duration",
    "parse_policy",
    "parse_rule",
    "parse_size",
    "parse_target",
    "replace",
    "resolve",
]

_MODULES = {
    "address": ("classify",),
    "aftermath": ("appeared",),
    "boundary": ("Access", "Boundary", "PathRule", "Watched"),
    "checks": ("check",),
    "errors": ("MalformedHost", "PolicyError"),
    "events": ("Closed", "Decision", "EgressEvent"),
    "explain": ("Explanation", "explain_host", "explain_path"),
    "facts": ("Facts",),
    "hosts": ("Target", "canonical_host", "is_address", "parse_target"),
    "launch": ("Launch",),
    "layers": ("Effective", "Entry", "Layer", "built_in", "merge"),
    "load": ("load_policy", "parse_policy"),
    "policy": ("Env", "Filesystem", "Limits", "Network", "Policy", "Verify", "Worker"),
    "report": ("Egress", "Finding", "Report"),
    "resolution": ("resolve",),
    "rule": ("Rule", "parse_rule"),
    "rules": ("Rules",),
    "schema": ("json_schema",),
    "trust": ("TrustStore",),
    "units": ("parse_duration", "parse_size"),
    "value": ("replace",),
    "verdict": ("Verdict",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _HOMES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{module}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted((*globals(), *__all__))
