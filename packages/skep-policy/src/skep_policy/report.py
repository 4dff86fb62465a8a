"""What scripts read: the keys stay (`skep exec --report`, `skep run --json`)."""

from __future__ import annotations

from .events import Closed, Decision, EgressEvent
from .value import Record, Value, lazy

LOST = "what guards the sandbox was killed, and everything in it with it: how the command ended is not known"


def limit_words(limit: str) -> str:
    """What is known when a launch names a limit. A worker that was refused a process, or lost one to the memory limit,
    may have failed for another reason after that.
    """
    match limit:
        case "memory":
            return "the memory limit was reached"
        case "processes":
            return "the processes limit was reached, and no more could be started"
        case "disk-free":
            return "a disk it writes on had less left than the disk-free limit wants"
        case _:
            return f"ended by the {limit} limit"


def limit_remedy(limit: str) -> str:
    """The flag that lets more through."""
    return f"--{limit} {'lowers' if limit == 'disk-free' else 'raises'} it"


LISTED = 4096
"""Destinations of a kind with totals of their own."""

OTHERS = "(others)", 0


class Allowed(Record):
    """`unreached` of the `count` never became a connection; `why` is what the last of those failed at."""

    host: str
    port: int
    count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    unreached: int = 0
    why: str = ""


class Denied(Record):
    """`port` is 0 where none is known: a name that was looked up."""

    host: str
    port: int
    count: int = 0
    reason: str = ""


class Egress(Record):
    """Totals per destination, in the order first seen. A worker can name any number of them: at most LISTED are told
    apart, and the rest is counted under OTHERS, port 0.
    """

    allowed: list[Allowed] = []
    denied: list[Denied] = []

    @lazy
    def _allowed(self) -> dict[tuple[str, int], Allowed]:
        return {(entry.host, entry.port): entry for entry in self.allowed}

    @lazy
    def _denied(self) -> dict[tuple[str, int], Denied]:
        return {(entry.host, entry.port): entry for entry in self.denied}

    def add(self, event: EgressEvent) -> None:
        """Count one event."""
        where = event.host, event.port
        if isinstance(event, Decision) and not event.verdict.allow:
            denied = self._denied.get(where)
            if denied is None:
                where = where if len(self.denied) < LISTED else OTHERS
                denied = self._denied.get(where)
            if denied is None:
                denied = self._denied[where] = Denied(*where)
                self.denied.append(denied)
            denied.count += 1
            denied.reason = event.verdict.reason
            return
        allowed = self._allowed.get(where)
        if allowed is None:
            where = where if len(self.allowed) < LISTED else OTHERS
            allowed = self._allowed.get(where)
        if allowed is None:
            allowed = self._allowed[where] = Allowed(*where)
            self.allowed.append(allowed)
        if isinstance(event, Closed):
            allowed.bytes_in += event.bytes_in
            allowed.bytes_out += event.bytes_out
            if event.unreached is not None:
                allowed.unreached += 1
                allowed.why = event.unreached
        else:
            allowed.count += 1


class Finding(Value):
    """Something a person should look at before trusting the tree."""

    kind: str
    path: str
    detail: str


class Report(Record):
    """One launch, for scripts. A layer is True when it was in force, False when not asked for, else why it was not."""

    exit_code: int
    layers: dict[str, bool | str]
    attestation: dict[str, bool | str | int]
    findings: list[Finding]
    egress: Egress
