"""What happened, as values: the proxy and the shim produce them, the audit log, the report and the review read them."""

from __future__ import annotations

import msgspec

from .verdict import Verdict


class Decision(msgspec.Struct, frozen=True, tag="decision"):
    """One egress decision. `via` is how it was asked: connect, http, socks5, transparent, dns."""

    time: float
    host: str
    port: int
    via: str
    verdict: Verdict


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """An allowed connection (or keep-alive request) ended. Bytes as the worker sees them: `bytes_in` came to it."""

    time: float
    host: str
    port: int
    via: str
    bytes_in: int
    bytes_out: int
    error: str | None = None


EgressEvent = Decision | Closed
