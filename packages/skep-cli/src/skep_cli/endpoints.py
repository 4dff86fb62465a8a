"""Where an agent was told to find its model, beside where it may go. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from skep_policy.errors import MalformedHost
from skep_policy.facts import Facts
from skep_policy.hosts import parse_target
from skep_policy.layers import Effective

from .presets import Preset

PORTS = {"http": 80, "https": 443}


def shut(preset: Preset, effective: Effective, facts: Facts) -> list[str]:
    """A line for each variable of an agent that names a host the policy does not allow, with the flag that would.

    An agent whose model is out of reach tries again for minutes, and on loopback, which is its own, nothing is denied
    that could be told afterwards.
    """
    rules, env = effective.rules(), effective.policy.env
    lines: list[str] = []
    for name in sorted({*facts.environ, *env.set}):
        if not any(fnmatchcase(name, pattern) for pattern in preset.policy.env.pass_):
            continue
        try:
            target = parse_target(_target(env.set.get(name, facts.environ.get(name, ""))))
        except MalformedHost:
            continue
        verdict = rules.decide(target.host, target.port)
        if verdict.allow:
            continue
        place = f"[{target.host}]:{target.port}" if ":" in target.host else f"{target.host}:{target.port}"
        remedy = f"which {verdict.rule} denies" if verdict.rule else f"which is not in the allowlist; --allow {place}"
        lines.append(f"{name} leads to {place}, {remedy}")
    return lines


def _target(value: str) -> str:
    """Host and port of a URL; empty for any other text."""
    try:
        parts = urlsplit(value)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return ""
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
