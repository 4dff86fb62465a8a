"""For every test there is: what hangs fails, and says where; what draws data has all the time it needs for it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import settings

if "CI" not in os.environ:  # there it has a profile of its own, which also draws the same in every run
    settings.register_profile("here", deadline=None)
    settings.load_profile("here")

AGENTS = "SKEP_TEST_AGENTS" in os.environ
LIMIT = float(os.environ.get("SKEP_TEST_LIMIT") or (1200 if AGENTS else 300))
"""Seconds for a test, and again for its fixtures: what takes longer hangs. The slowest take twenty on two cores; who
installs agents needs more.
"""
AGAIN = 60.0
"""Seconds for what cleans up after a test that was ended, before that is ended too."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    yield from limited()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from limited()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield from limited()


def limited() -> Generator[None]:
    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, AGAIN)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def give_up(number: int, frame: FrameType | None) -> None:
    """The failure says what every thread of ours and every process below us was doing."""
    __tracebackhide__ = True
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    said = [f"not done after {LIMIT:g} seconds"]
    for ident, top in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage]
        if ident != threading.main_thread().ident:  # pytest itself shows that one
            said += [f"\nthread {names.get(ident, ident)}:\n", *traceback.format_stack(top)]
    said += ["\nprocesses below this one:\n", *(f"{line}\n" for line in below(os.getpid()))]
    pytest.fail("".join(said))


def below(pid: int, indent: str = "") -> list[str]:
    """A line for each: its number, state, what it waits for in the kernel, command."""
    found: list[str] = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # gone, or no Linux
        return found
    for child in children:
        try:
            folder = Path("/proc", child)
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{indent}{child} {state} {(folder / 'wchan').read_text() or '-'} {words[:300]}")
        except OSError:
            continue
        found += below(int(child), indent + "  ")
    return found
