"""A filtering egress proxy: CONNECT, HTTP/1.1 and SOCKS5, decided by domain rules.

`Proxy` is the engine on a thread of its own. `serve` is the same in structured concurrency; it is imported when it is
first used, since it needs anyio and `Proxy` does not.
"""

from __future__ import annotations

from .denial import explain_denial
from .engine import Stats
from .limits import Limits
from .server import Proxy
from .upstream import Upstream, UpstreamError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .serving import Serving, serve

__all__ = ["Limits", "Proxy", "Serving", "Stats", "Upstream", "UpstreamError", "explain_denial", "serve"]


def __getattr__(name: str) -> object:
    if name in ("serve", "Serving"):
        from . import serving

        return getattr(serving, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
