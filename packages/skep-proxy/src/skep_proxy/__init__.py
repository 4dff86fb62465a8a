"""A filtering egress proxy: CONNECT, HTTP/1.1 and SOCKS5, decided by domain rules."""

from __future__ import annotations

from .engine import Stats
from .limits import Limits
from .server import Proxy
from .upstream import Upstream, UpstreamError

__all__ = ["Limits", "Proxy", "Stats", "Upstream", "UpstreamError"]
