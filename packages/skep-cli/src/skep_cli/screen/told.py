"""Egress in lines, for the end of a command: what was denied, with the flag that would allow it, and what was allowed
and never reached. Pure.
"""

from __future__ import annotations

from skep_policy.report import Allowed, Denied, Egress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

TOLD = 20
"""Destinations of a kind told on the terminal: a worker can name thousands."""

WEB_PORTS = (80, 443)


REASONS = {
    "allowed": "",
    "not-listed": "not in the allowlist",
    "denied-by-rule": "a deny rule names it",
    "malformed": "not a host that can be asked for; write a name, an address or [IPV6], then :PORT",
    "private-address": "its address is private",
    "sni-mismatch": "the TLS handshake names a host that is not allowed",
    "byte-budget": "max-bytes-out is spent",
    "not-recorded": "the decision could not be written down",
}
"""The words of a verdict (`Verdict.reason`) as people read them."""


def reason_words(reason: str) -> str:
    """What a person reads for a word of a verdict; the word itself where it says all there is."""
    return REASONS.get(reason, reason)


def place(host: str, port: int) -> str:
    """`host:port` as a rule writes it, and the host alone where no port is known."""
    if not port:
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def egress_lines(egress: Egress, registries: Mapping[tuple[str, int], str] | None = None) -> list[str]:
    """The first TOLD of each kind, and how many more there are. `registries` are those a toolchain is for, by host and
    port.
    """
    known = registries or {}
    asked = {denied.host for denied in egress.denied if denied.port}
    # A program that looked a name up and then asked for it is told of with its port only.
    denials = [denied for denied in egress.denied if denied.port or denied.host not in asked]
    failures = [allowed for allowed in egress.allowed if allowed.unreached and allowed.unreached == allowed.count]
    lines = [_denial(denied, known.get((denied.host, denied.port))) for denied in denials[:TOLD]]
    if len(denials) > TOLD:
        lines.append(f"denied {len(denials) - TOLD} other destinations; --report FILE lists them")
    lines += [_failure(allowed) for allowed in failures[:TOLD]]
    if len(failures) > TOLD:
        lines.append(f"{len(failures) - TOLD} other destinations were not reached; --report FILE lists them")
    return lines


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _denial(denied: Denied, toolchain: str | None) -> str:
    target = place(denied.host, denied.port)
    shown = denied.host if denied.port in WEB_PORTS else target
    match denied.reason:
        case "not-listed":
            for_it = f"--toolchain {toolchain}, whose registry it is, or " if toolchain else ""
            remedy = f"{reason_words(denied.reason)}; {for_it}--allow {shown}"
        case "private-address":
            remedy = f'{reason_words(denied.reason)}; `private = ["{denied.host}"]` under [network] in a policy file'
        case "denied-by-rule":
            remedy = f"{reason_words(denied.reason)}; take the rule out"
        case reason:
            remedy = reason_words(reason)
    return f"denied {target}{_times(denied.count)}: {remedy}"


def _failure(allowed: Allowed) -> str:
    return f"allowed {place(allowed.host, allowed.port)}{_times(allowed.count)} but not reached: {allowed.why}"
