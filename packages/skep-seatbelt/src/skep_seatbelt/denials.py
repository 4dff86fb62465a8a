"""What the unified log says was denied, as values. Pure: lines in, values out.

The log is for people. It drops repeats, comes late and can miss events, so nothing is decided by it. Each denial of a
run carries the run's tag as its message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from .places import canonical
from .services import FORBIDDEN, HINTS, OPEN_NETWORK

MAX_LINE = 16 * 1024
"""Bytes of a line that are looked at."""

LOG = ("/usr/bin/log", "stream", "--style", "ndjson", "--level", "error", "--predicate")


class Denial(msgspec.Struct, frozen=True):
    """One line of the log. `target` is a path, a Mach name, an address, or empty. `count` adds up its repeats."""

    process: str
    pid: int
    operation: str
    target: str
    count: int = 1


_EVENT = re.compile(
    r"(?:(?P<repeats>\d+) duplicate reports? for )?"
    r"Sandbox: (?P<process>.+?)\((?P<pid>\d+)\) (?:System Policy: )?deny(?:\(\d+\))? (?P<operation>[a-z0-9*-]+)"
    r"(?: (?P<target>[^\n]*))?"
)


def log_command(tag: str) -> tuple[str, ...]:
    """The command whose output holds the denials of a run. It takes about 100 ms to attach."""
    return (*LOG, f'sender == "Sandbox" AND eventMessage CONTAINS "{tag}"')


def parse_line(line: str, *, tag: str) -> Denial | None:
    """The denial of the run `tag` in a line of the log, in `ndjson` or any other style; None when it is none."""
    line = line[:MAX_LINE]
    message = line
    if line.lstrip().startswith("{"):
        try:
            message = msgspec.json.decode(line, type=_Entry).message
        except msgspec.MsgspecError:
            return None
    found = _EVENT.search(message)
    if found is None or tag not in message:
        return None
    target = (found["target"] or "").removesuffix(tag).strip()
    return Denial(found["process"], int(found["pid"]), found["operation"], target, int(found["repeats"] or 1))


def collect(lines: Iterable[str], *, tag: str) -> list[Denial]:
    """The denials of a run, one for each process name, operation and target, in the order first seen."""
    found: dict[tuple[str, str, str], Denial] = {}
    for line in lines:
        if denial := parse_line(line, tag=tag):
            key = (denial.process, denial.operation, denial.target)
            before = found.get(key)
            count = denial.count + (before.count if before else 0)
            found[key] = msgspec.structs.replace(before or denial, count=count)
    return list(found.values())


def matters(denial: Denial) -> bool:
    """Whether a person would want to know: programs ask for many services that they do without."""
    if denial.operation == "mach-lookup":
        return denial.target in FORBIDDEN or denial.target in HINTS
    return denial.operation.startswith(("file-", "network-", "forbidden-", "process-exec"))


def remedy(denial: Denial) -> str:
    """What would allow it, or why nothing does; empty when that is not known."""
    path = canonical(denial.target)
    if denial.operation == "mach-lookup":
        if reason := FORBIDDEN.get(denial.target):
            return f"this service {reason}; it cannot be granted"
        hint = HINTS.get(denial.target)
        flag = "it connects by itself, so only --allow '*' allows it; " if denial.target in OPEN_NETWORK else ""
        return f"{hint + '; ' if hint else ''}{flag}services={denial.target!r} of skep_seatbelt.run grants it"
    if denial.operation.startswith("file-write") and path.startswith("/"):
        return f"--write {path} would allow it"
    if denial.operation.startswith("file-read") and path.startswith("/"):
        return f"--grant {path} would allow it"
    if denial.operation == "network-outbound" and path.startswith("/"):
        return f"--socket {path} would allow it"
    if denial.operation.startswith("network-"):
        return "the program ignores the proxy settings, and macOS cannot redirect it"
    if denial.operation == "forbidden-sandbox-reinit":
        return "a sandbox cannot start another one on macOS; turn the inner one off"
    return ""


def advise(denial: Denial) -> str:
    """One line for people: what was denied, and what would allow it."""
    what = f"{denial.process}: {denial.operation} {denial.target}".rstrip()
    told = remedy(denial)
    return f"{what}: {told}" if told else what


class _Entry(msgspec.Struct, frozen=True):
    message: str = msgspec.field(name="eventMessage", default="")
