"""For every test there is: what hangs fails, and says where; what leaves the process of the tests in another state
fails too; what draws data has all the time it needs for it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

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
    item.stash[BEFORE] = Own.now()
    yield from limited()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    yield from limited()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    yield from limited()
    before, after = item.stash[BEFORE], Own.now()
    if after != before:
        before.restore()
        changed = [name for name, was, now in zip(Own._fields, before, after, strict=True) if was != now]
        pytest.fail(f"the tests that follow would not find what this one found: {', '.join(changed)}")


class Own(NamedTuple):
    """What every process started by a test inherits, or every test of this process shares."""

    blocked_signals: set[int]
    signal_handlers: list[object]
    resource_limits: list[tuple[int, int]]
    folder: str
    mask_of_modes: int
    environment: dict[str, str]

    @classmethod
    def now(cls) -> Own:
        os.umask(umask := os.umask(0o022))
        return cls(
            {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])},
            [signal.getsignal(number) for number in SIGNALS],
            [resource.getrlimit(limit) for limit in LIMITS],
            os.getcwd(),
            umask,
            {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        )

    def restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked_signals)
        for number, handler in zip(SIGNALS, self.signal_handlers, strict=True):
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        for limit, (soft, _) in zip(LIMITS, self.resource_limits, strict=True):
            resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))
        os.chdir(self.folder)
        os.umask(self.mask_of_modes)
        for name in os.environ.keys() - self.environment.keys() - {"PYTEST_CURRENT_TEST"}:
            del os.environ[name]
        os.environ.update(self.environment)


BEFORE = pytest.StashKey[Own]()
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGTSTP)
LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CORE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_AS,
)


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
