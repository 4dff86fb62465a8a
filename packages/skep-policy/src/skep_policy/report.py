"""What scripts read: the keys stay (`skep exec --report`, `skep run --json`)."""

from __future__ import annotations

import msgspec

from .events import Closed, Decision, EgressEvent


class Allowed(msgspec.Struct):
    host: str
    port: int
    count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Denied(msgspec.Struct):
    host: str
    port: int
    count: int = 0
    reason: str = ""


class Egress(msgspec.Struct):
    """Totals per destination, in the order first seen."""

    allowed: list[Allowed] = msgspec.field(default_factory=list[Allowed])
    denied: list[Denied] = msgspec.field(default_factory=list[Denied])

    def add(self, event: EgressEvent) -> None:
        """Count one event."""
        match event:
            case Decision(host=host, port=port, verdict=verdict) if not verdict.allow:
                for denied in self.denied:
                    if (denied.host, denied.port) == (host, port):
                        break
                else:
                    denied = Denied(host, port)
                    self.denied.append(denied)
                denied.count += 1
                denied.reason = verdict.reason
            case Decision(host=host, port=port):
                self._allowed(host, port).count += 1
            case Closed(host=host, port=port, bytes_in=bytes_in, bytes_out=bytes_out):
                allowed = self._allowed(host, port)
                allowed.bytes_in += bytes_in
                allowed.bytes_out += bytes_out

    def _allowed(self, host: str, port: int) -> Allowed:
        for allowed in self.allowed:
            if (allowed.host, allowed.port) == (host, port):
                return allowed
        allowed = Allowed(host, port)
        self.allowed.append(allowed)
        return allowed


class Finding(msgspec.Struct, frozen=True):
    """Something a person should look at before trusting the tree."""

    kind: str
    path: str
    detail: str


class Report(msgspec.Struct):
    """One launch, for scripts. A layer is True when it was in force, False when not asked for, else why it was not."""

    exit_code: int
    layers: dict[str, bool | str]
    attestation: dict[str, bool | str | int]
    findings: list[Finding]
    egress: Egress
