"""What happened, as values: the proxy and the shim produce them, the audit log, the report and the review read them."""

from __future__ import annotations

from .value import Value
from .verdict import Verdict


class Decision(Value):
    """One egress decision. `via` is how it was asked: connect, http, socks5, transparent, dns. `port` is 0 where none
    is known: a name that was looked up says nothing of it, and neither does a malformed target.
    """

    time: float
    host: str
    port: int
    via: str
    verdict: Verdict


class Closed(Value):
    """An allowed connection (or keep-alive request) ended. Bytes as the worker sees them: `bytes_in` came to it.
    `error` is a word or a few; `unreached` says why there never was a connection, None when there was.
    """

    time: float
    host: str
    port: int
    via: str
    bytes_in: int
    bytes_out: int
    error: str | None = None
    unreached: str | None = None


EgressEvent = Decision | Closed
