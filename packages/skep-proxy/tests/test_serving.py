"""The proxy in an `async with` block, on asyncio and on trio."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import check_output

import anyio
import pytest
from skep_policy import Rules
from skep_proxy import serve
from skep_proxy.testing import Origin, Recorder

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


async def ask(address: tuple[str, int], text: str) -> bytes:
    answer = b""
    async with await anyio.connect_tcp(*address) as stream:
        await stream.send(text.encode())
        with anyio.fail_after(60):
            try:
                while True:
                    answer += await stream.receive()
            except anyio.EndOfStream:
                return answer


async def test_lives_as_long_as_its_block(origin: Origin, tmp_path: Path) -> None:
    rules = Rules.build(allow=[f"localhost:{origin.port}"])
    events = Recorder()
    async with serve(rules, on_event=events, unix=tmp_path / "s", drain=1) as serving:
        assert serving.address is not None
        assert b"origin ok" in await ask(serving.address, f"GET http://localhost:{origin.port}/ HTTP/1.0\r\n\r\n")
        assert b" 403 " in await ask(serving.address, "GET http://bad.test/ HTTP/1.0\r\n\r\n")
        assert serving.environ()["https_proxy"] == serving.url == f"http://127.0.0.1:{serving.address[1]}"
    with pytest.raises(OSError):  # noqa: PT011  refused, in the words of either backend
        await anyio.connect_tcp(*serving.address)
    assert not (tmp_path / "s").exists()
    assert events.allowed() == [("localhost", origin.port)]


async def test_cancellation_ends_it_at_once(origin: Origin) -> None:
    with anyio.move_on_after(0.2) as scope:
        async with serve(Rules.build(allow=[f"localhost:{origin.port}"]), drain=60) as serving:
            assert serving.address is not None
            async with await anyio.connect_tcp(*serving.address) as stream:
                await stream.send(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
                await stream.receive()
                await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_address_that_cannot_be_had_is_an_error() -> None:
    async with serve(Rules.build()) as serving:
        with pytest.raises(OSError, match="in use"):
            async with serve(Rules.build(), tcp=serving.address):
                pass


async def test_without_a_tcp_listener_there_is_no_url(tmp_path: Path) -> None:
    async with serve(Rules.build(), tcp=None, unix=tmp_path / "s") as serving:
        with pytest.raises(RuntimeError):
            serving.url  # noqa: B018


async def test_the_engine_needs_neither_anyio_nor_asyncio() -> None:
    code = (
        "import sys, skep_proxy; skep_proxy.Proxy().close();"
        "print([name for name in ('anyio', 'asyncio', 'h11', 'click') if name in sys.modules])"
    )
    assert check_output([sys.executable, "-c", code], text=True, env={**os.environ}) == "[]\n"
