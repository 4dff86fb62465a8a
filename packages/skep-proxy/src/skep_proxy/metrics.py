"""Counters in the Prometheus text format (version 0.0.4). Pure."""

from __future__ import annotations

from .engine import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(stats: Stats) -> str:
    """One page. Label values are the proxy's own vocabulary (reasons), never text of a client."""
    lines: list[str] = []
    _metric(lines, "connections", "gauge", "Client connections that are open.", {"": stats.connections})
    _metric(lines, "tunnels", "gauge", "Tunnels that stand.", {"": stats.tunnels})
    _metric(lines, "accepted_total", "counter", "Client connections accepted.", {"": stats.accepted})
    _metric(lines, "allowed_total", "counter", "Decisions that allowed.", {"": stats.allowed})
    _metric(lines, "denied_total", "counter", "Decisions that denied, by reason.", _by_reason(stats.denied))
    _metric(lines, "failures_total", "counter", "Allowed connections that failed.", _by_reason(stats.failures))
    directions = {'{direction="in"}': stats.bytes_in, '{direction="out"}': stats.bytes_out}
    _metric(lines, "bytes_total", "counter", "Bytes of ended connections, as clients see them.", directions)
    _metric(lines, "unrecorded_total", "counter", "Events that could not be recorded.", {"": stats.unrecorded})
    _metric(lines, "faults_total", "counter", "Faults of the proxy itself.", {"": stats.faults})
    return "\n".join(lines) + "\n"


def add(total: Stats, more: Stats) -> Stats:
    """The sum of two workers' counters."""
    denied, failures = dict(total.denied), dict(total.failures)
    for sums, counts in ((denied, more.denied), (failures, more.failures)):
        for reason, count in counts.items():
            sums[reason] = sums.get(reason, 0) + count
    return Stats(
        accepted=total.accepted + more.accepted,
        connections=total.connections + more.connections,
        tunnels=total.tunnels + more.tunnels,
        allowed=total.allowed + more.allowed,
        denied=denied,
        bytes_in=total.bytes_in + more.bytes_in,
        bytes_out=total.bytes_out + more.bytes_out,
        failures=failures,
        unrecorded=total.unrecorded + more.unrecorded,
        faults=total.faults + more.faults,
    )


def _by_reason(counts: dict[str, int]) -> dict[str, int]:
    return {f'{{reason="{_escape(reason)}"}}': count for reason, count in sorted(counts.items())}


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _metric(lines: list[str], name: str, kind: str, about: str, values: dict[str, int]) -> None:
    lines.append(f"# HELP skep_proxy_{name} {about}")
    lines.append(f"# TYPE skep_proxy_{name} {kind}")
    lines += [f"skep_proxy_{name}{labels} {value}" for labels, value in values.items()]
