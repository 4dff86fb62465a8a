"""Signals to `skep run` at every stage: a run whose worker started says how it ended, one whose worker did not leaves
nothing, and no signal ends in a traceback.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from skep_cli.stages.interrupts import Ending, Interrupts, held

from .stage import PLAIN, make_repo

KINDS = ["overlay", "copy", "workspace"]


class Started:
    """A `skep run` that can be sent signals, whatever the disposition of those in the process of the tests."""

    def __init__(self, state: Path, repo: Path, script: str, kind: str, *flags: str) -> None:
        self.state = state
        quoted = script.replace("'", "'\\''")
        words = [sys.executable, "-m", "skep_cli", "run", str(repo), "t", "--worker", f"sh -c '{quoted}'", "--json"]
        how = ("--execution-mode", "workspace") if kind == "workspace" else ("--workspace", kind)
        env = {"PATH": os.environ["PATH"], "HOME": str(state), "XDG_STATE_HOME": str(state), **PLAIN}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTENING, *words, *how, *flags],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.said = b""

    def until(self, text: str) -> None:
        """It has said that on stderr; skips where there is no sandbox."""
        assert self.process.stderr is not None
        while text.encode() not in self.said:
            block = self.process.stderr.readline()
            if not block:
                self.process.communicate()
                assert not os.environ.get("SKEP_SANDBOX_MUST_WORK"), self.said.decode()
                pytest.skip(self.said.decode())
            self.said += block

    def send(self, number: int, *, times: int = 1, gap: float = 0.0, group: bool = False) -> None:
        """As kill(1) sends it; with `group` as a terminal does."""
        for _ in range(times):
            try:
                (os.killpg if group else os.kill)(self.process.pid, number)
            except ProcessLookupError:
                return
            time.sleep(gap)

    def end(self) -> tuple[int, dict[str, Any] | None]:
        try:
            out, rest = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        self.said += rest
        assert b"Traceback" not in self.said, self.said.decode()
        runs = self.state / "skep/runs"
        left = [path for path in runs.glob("*/*") if path.name in ("workspace", "verify", "rules", "agent", "lock")]
        assert left == [], self.said.decode()
        told = json.loads(out.splitlines()[-1]) if out.strip() else None
        assert bool(told) == (runs.exists() and os.listdir(runs) != []), self.said.decode()
        return self.process.returncode, told


LISTENING = (
    "import os, signal, sys\n"
    "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""A background job of a shell without job control has SIGINT ignored, and so have its children."""
DEAF = "trap '' INT TERM HUP; echo x > f; echo up; while :; do sleep 0.1; done"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A tree that takes a moment to copy and to look at."""
    repo = make_repo(
        tmp_path / "repo", {"calc.py": "x = 1\n", **{f"d{n % 20}/f{n}": f"{n}\n" * 40 for n in range(600)}}
    )
    for number in range(60):
        (repo / f"untracked{number}").write_bytes(os.urandom(200_000))
    return repo


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_worker_leaves_nothing(state: Path, big: Path, kind: str, number: int) -> None:
    for _ in range(20):
        started = Started(state, big, "touch $SKEP_RESULTS/begun", kind)
        started.until(f"{'an overlay over' if kind == 'overlay' else 'copying'} {big}")
        started.send(number)
        code, told = started.end()
        if told is None:
            assert code == 128 + number and b"interrupted; the worker never ran" in started.said
            return
        shutil.rmtree(state / "skep/runs" / told["id"])  # the signal was too late for what is tried here
    assert kind == "overlay", "it was to be interrupted long before its worker"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [False, True], ids=["sent", "typed"])
def test_two_signals_end_a_deaf_worker_and_its_patch_is_taken(state: Path, repo: Path, kind: str, group: bool) -> None:
    for gap in (0.0, 0.5):
        started = Started(state, repo, DEAF, kind)
        started.until("up\n")
        started.send(signal.SIGINT, group=group)
        started.until("once more ends it")  # two that are pending at once are one to the kernel
        time.sleep(gap)
        started.send(signal.SIGINT, group=group)
        code, told = started.end()
        assert told is not None and told["files_changed"] == ["f"] and code == 1, started.said.decode()
        assert told["state"] == "failed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [False, True], ids=["sent", "typed"])
def test_three_signals_in_a_row_do_not_cost_the_patch(state: Path, repo: Path, kind: str, group: bool) -> None:
    script = "trap 'exit 7' INT; echo x > f; echo up; while :; do sleep 0.02; done"
    started = Started(state, repo, script, kind)
    started.until("up\n")
    started.send(signal.SIGINT, times=3, gap=0.1, group=group)
    _, told = started.end()
    assert told is not None and told["files_changed"] == ["f"], started.said.decode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_verification_ends_it_as_unavailable(state: Path, repo: Path, kind: str, number: int) -> None:
    started = Started(state, repo, "echo x > f", kind, "--verify", "sh -c 'echo up; exec sleep 60'")
    started.until("up\n")
    started.send(number)
    code, told = started.end()
    assert told is not None and code == 1
    assert (told["state"], told["verification"]["outcome"], told["files_changed"]) == (
        "completed",
        "unavailable",
        ["f"],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_signal_at_any_moment_ends_in_a_document_or_in_nothing(state: Path, big: Path, kind: str) -> None:

    def interrupted(step: int) -> None:
        (state / str(step)).mkdir()
        started = Started(state / str(step), big, "echo x > f; sleep 0.1", kind, "--verify", "true")
        started.until("skep: run")
        time.sleep(0.12 * step)
        number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[step % 3]
        started.send(number, times=1 + step % 3, gap=0.02, group=step % 2 == 0)
        code, told = started.end()
        if told is None:
            assert code in (128 + number, -number), started.said.decode()
        else:
            assert told["state"] in ("completed", "failed") and code in (0, 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(interrupted, range(8)))


def test_a_block_is_ended_once_and_cleaning_up_is_left_alone() -> None:
    steps: list[str] = []

    def block(interrupts: Interrupts) -> None:
        with interrupts.breakable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                steps.append("never")
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                steps.append("cleaned")

    with alone() as interrupts:
        with pytest.raises(Ending) as ending:
            block(interrupts)
        assert steps == ["cleaned"] and ending.value.exit_code == 128 + signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)  # outside of any block it is only noted


def test_a_signal_that_came_before_ends_the_next_block_and_one_that_is_held_back_ends_it_later() -> None:
    steps: list[str] = []

    def block(interrupts: Interrupts) -> None:
        with interrupts.breakable():
            with held:
                os.kill(os.getpid(), signal.SIGTERM)
                steps.append("held")
            steps.append("never")

    with alone() as interrupts:
        for _ in range(2):
            with pytest.raises(Ending):
                block(interrupts)
        assert steps == ["held"]


@pytest.mark.parametrize("taken_for", [None, TypeError("Encoding objects of type Entry is unsupported")], ids=str)
def test_a_block_that_takes_its_end_for_something_else_is_ended_all_the_same(taken_for: Exception | None) -> None:
    """As C code does that asks for an attribute, and takes any exception for there being none."""

    def block(interrupts: Interrupts) -> None:
        with interrupts.breakable():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                if taken_for is not None:
                    raise taken_for from None

    with alone() as interrupts, pytest.raises(Ending):
        block(interrupts)


def test_with_a_warning_the_first_signals_warn_and_a_later_one_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []

    def block(interrupts: Interrupts) -> None:
        with interrupts.breakable(warn=lambda: warnings.append("told")):
            monkeypatch.setattr("skep_cli.stages.interrupts.ONE_WISH", 3600.0)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            assert warnings == ["told"]
            monkeypatch.setattr("skep_cli.stages.interrupts.ONE_WISH", 0.0)
            os.kill(os.getpid(), signal.SIGTERM)
            warnings.append("never")

    with alone() as interrupts, pytest.raises(Ending):
        block(interrupts)
    assert warnings == ["told"]


class alone:
    """Handlers of `Interrupts` in this process, and what was there before afterwards."""

    def __enter__(self) -> Interrupts:
        assert threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._before = [(number, signal.getsignal(number)) for number in numbers]
        interrupts = Interrupts()
        interrupts.install()
        return interrupts

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)


ELSEWHERE = """
import os, signal, threading, time
from skep_cli.stages import local

asked = threading.Event()
says, output = os.pipe()

def twice():
    os.read(says, 3)
    for _ in range(2):
        time.sleep(0.2)  # the main thread waits by now; if not, nothing is tried here
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        assert asked.wait(30)

thread = threading.Thread(target=twice)
null = os.open(os.devnull, os.O_RDWR)
words = ["sh", "-c", "trap '' INT; echo up; while :; do sleep 0.1; done"]
done = local.run(words, cwd="/", env=dict(os.environ), stdin=null, output=output, wall=None,
                 spawned=lambda kill: thread.start(), asked=asked.set)
print(done.exit_code, done.limit)
"""
"""Signals that come on another thread interrupt no wait of the main one, as one that comes just before it does not."""


def test_a_signal_is_heard_that_interrupts_no_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTENING, sys.executable, "-c", ELSEWHERE],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "137 None\n", done.stderr
