"""The library from where programs of others call it: a server's event loop and its threads, an interactive Python."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from .box import Box, go, own_children

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize("threads", [True, False], ids=["in its threads", "on the loop itself"])
def test_a_server_with_an_event_loop_keeps_its_signals_and_its_own_children(box: Box, threads: bool) -> None:
    """As a worker of uvicorn is one: handlers for signals by a wake-up descriptor, children it awaits itself."""
    launches = [box.launch(["sh", "-c", f"exit {number}"]) for number in range(4)]

    async def serve() -> tuple[list[int], int, int]:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
        child = await asyncio.create_subprocess_exec("sh", "-c", "read line; exit 7", stdin=subprocess.PIPE)
        if threads:
            ended = await asyncio.gather(*(asyncio.to_thread(go, launch) for launch in launches))
        else:
            ended = [go(launch) for launch in launches]
        os.kill(os.getpid(), signal.SIGUSR1)
        await told.wait()
        await child.communicate(b"\n")
        late = await asyncio.create_subprocess_exec("sh", "-c", "exit 8")
        return [each.exit_code for each in ended], await child.wait(), await late.wait()

    before = own_children()
    assert asyncio.run(serve()) == ([0, 1, 2, 3], 7, 8)
    assert own_children() <= before


TYPED = """
import msgspec, pathlib
from skep_bwrap import spawn
from skep_policy.launch import Launch
launch = msgspec.msgpack.decode(pathlib.Path({stored!r}).read_bytes(), type=Launch)
for number in range(2):
    sandbox = spawn(launch, stdin=None)
    ended = sandbox.wait()
    print("ended with", ended.exit_code)

print("still here")
"""


def test_who_types_at_a_python_prompt_gets_the_answer_and_the_next_prompt(box: Box) -> None:
    stored: Path = box.out / "launch"
    stored.write_bytes(msgspec.msgpack.encode(box.launch(["sh", "-c", "echo said; exit 3"])))
    typed = TYPED.format(stored=str(stored))
    done = subprocess.run([sys.executable, "-u", "-i", "-q"], input=typed, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["said", "ended with 3", "said", "ended with 3", "still here"]
    assert "Error" not in done.stderr
