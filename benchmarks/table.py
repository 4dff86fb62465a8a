"""Markdown tables, and the line about the machine that stands above them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Numbers to the right: every column but the first."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *(line(row) for row in rows)])


def short(value: float) -> str:
    """Three figures, no more than a noisy machine gives."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def ratio(value: float, to: float | None) -> str:
    return f"{short(value / to)}x" if to else ""


def missing(reasons: dict[str, str]) -> str:
    """What was not measured and why, as a list; empty when all was."""
    return "\n".join(f"- {name}: not measured, {reason}" for name, reason in reasons.items())


def machine() -> str:
    """Facts that the figures depend on."""
    facts = [
        f"{os.cpu_count()} cores ({_cpu()})",
        f"Linux {platform.release()}",
        f"congestion control {_read('/proc/sys/net/ipv4/tcp_congestion_control')}",
        f"Python {platform.python_version()}",
        f"uid {os.getuid()}",
        f"load average before {os.getloadavg()[0]:.1f}",
        f"skep {_revision()}",
    ]
    return ", ".join(facts) + "."


def version(argv: Sequence[str]) -> str:
    """First line of what a program says about its version."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    return next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), "version unknown")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _cpu() -> str:
    names = [line.partition(":")[2].strip() for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def _revision() -> str:
    here = Path(__file__).parent
    words = version(["git", "-C", str(here), "describe", "--always", "--dirty"])
    return words if words.removesuffix("-dirty").isalnum() else "of no known revision"
