"""The proxy in structured concurrency: it lives exactly as long as an `async with` block, on asyncio and on trio."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from skep_policy import Rules

from .engine import OnEvent
from .limits import Limits
from .resolver import Resolve, getaddrinfo
from .server import Proxy
from .upstream import Upstream


class Serving:
    """A proxy that is being served. `proxy` takes more listeners and other rules."""

    def __init__(self, proxy: Proxy, address: tuple[str, int] | None) -> None:
        self.proxy = proxy
        self.address = address

    @property
    def url(self) -> str:
        """For `HTTPS_PROXY` and its kin. Raises RuntimeError when there is no TCP listener."""
        if self.address is None:
            raise RuntimeError("no TCP listener was asked for")
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def environ(self) -> dict[str, str]:
        """Variables that lead a child process's HTTP clients here. A hint to the child, not a boundary."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        both = dict.fromkeys((*names, *(name.lower() for name in names)), self.url)
        return both | {"NO_PROXY": "localhost,127.0.0.1,::1", "no_proxy": "localhost,127.0.0.1,::1"}


@asynccontextmanager
async def serve(
    rules: Rules,
    *,
    tcp: tuple[str, int] | None = ("127.0.0.1", 0),
    unix: str | os.PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    upstream: Upstream | None = None,
    limits: Limits | None = None,
    resolve: Resolve = getaddrinfo,
    drain: float = 0.0,
) -> AsyncGenerator[Serving]:
    """A proxy until the end of the block. Leaving it in peace gives open connections `drain` seconds to end; leaving
    it by cancellation or an exception cuts them at once. Nothing is left in either case.

    `on_event` is called on the engine's thread. Raises OSError when an address cannot be listened on.
    """
    proxy = Proxy(on_event=on_event, upstream=upstream, limits=limits, resolve=resolve)
    try:
        address = None if tcp is None else proxy.listen_tcp(*tcp, rules)
        if unix is not None:
            proxy.listen_unix(unix, rules)
        yield Serving(proxy, address)
        if drain > 0:
            await drained(proxy, drain)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(proxy.close)


async def drained(proxy: Proxy, seconds: float) -> bool:
    """True once every connection has ended, False when some have not after that time. Nothing new is accepted."""
    await anyio.to_thread.run_sync(proxy.stop_accepting)
    with anyio.move_on_after(seconds):
        while proxy.stats().connections:
            await anyio.sleep(0.05)
        return True
    return False
