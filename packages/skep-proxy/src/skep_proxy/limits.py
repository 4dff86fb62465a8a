"""What one proxy spends on its clients at most. There is no idle limit on tunnels: streams may be silent."""

from __future__ import annotations

from skep_policy.value import Value


class Limits(Value):
    """Sizes in bytes, times in seconds."""

    connections: int = 16384
    """Client connections at a time; more wait in the listen backlog."""

    connections_each: int = 4096
    """The same of one listener or one hand-over, so that one sandbox does not use up what is there for all."""

    head: int = 65536
    """Request head, response head, SOCKS request, TLS ClientHello, chunk line and trailer section, each."""

    handshake: float = 30.0
    """From accepting a connection to its complete request, and for a ClientHello once it has begun."""

    dial: float = 15.0
    """Resolving a name, and again connecting to what it resolved to."""

    keep_alive: float = 120.0
    """Between two requests of one plain HTTP connection."""

    linger: float = 2.0
    """For a client to read the answer to a request it is still sending."""
