"""Each process of skep, each signal, each stage: nothing is left, nothing hangs, and the exit status does not lie.

SKEP_LEFTOVERS=all tries every combination, some 1,900 in half an hour; without, a few of each kind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import zlib
from pathlib import Path

import pytest
from skep_policy.report import LOST

from .processes import send, state
from .stand import SKEP, Left, Stand, eventually, stand

pytestmark = pytest.mark.sandbox

SIGNALS = (
    *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV, signal.SIGABRT),
    *(signal.SIGSTOP, signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1, signal.SIGXCPU),
)
GUARDED = ("skep", "guardian", "bwrap")
STAGES: dict[str, tuple[str, ...]] = {
    "snapshot": ("skep", "git"),
    "setup": (*GUARDED, "pid 1", "worker"),
    "exec": GUARDED,
    "clone": (*GUARDED, "pid 1"),
    "ready": (*GUARDED, "pid 1"),
    "shim": (*GUARDED, "pid 1", "shim"),
    "worker": (*GUARDED, "pid 1", "worker"),
    "ending": ("skep", "guardian"),
    "collecting": ("skep", "git"),
    "verification": (*GUARDED, "pid 1", "worker"),
    "sealing": ("skep",),
}
OF_RUNS = ("snapshot", "setup", "collecting", "verification", "sealing")
TOGETHER = (("guardian", "skep"), ("bwrap", "guardian"), ("bwrap", "skep"), ("guardian", "bwrap", "skep"))
MODES = ("exec", "allow", "library", "overlay", "copy")

Case = tuple[str, str, tuple[str, ...], signal.Signals]


def every_case() -> list[Case]:
    cases: list[Case] = []
    for mode in MODES:
        for stage, victims in STAGES.items():
            if stage in OF_RUNS and mode not in ("overlay", "copy"):
                continue
            cases += [(mode, stage, (victim,), number) for victim in victims for number in SIGNALS]
            if set(GUARDED) <= set(victims):
                cases += [(mode, stage, victims, signal.SIGKILL) for victims in TOGETHER]
    return cases


def few(cases: list[Case]) -> list[Case]:
    """SIGKILL to each process at each stage in one mode, to several while pid 1 waits for bwrap, and one in 150."""
    chosen: list[Case] = []
    for case in cases:
        mode, stage, victims, number = case
        plain = mode == ("overlay" if stage in OF_RUNS else "exec") and number == signal.SIGKILL
        if (plain and (len(victims) == 1 or stage == "clone")) or zlib.crc32(repr(case).encode()) % 150 == 0:
            chosen.append(case)
    return chosen


CASES = every_case() if os.environ.get("SKEP_LEFTOVERS") == "all" else few(every_case())


def name_of(case: Case) -> str:
    mode, stage, victims, number = case
    return f"{mode}-{stage}-{'+'.join(victims)}-{number.name}"


@pytest.mark.guarantee("gone-processes", "gone-files")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_nothing_is_left_and_the_status_does_not_lie(sandbox_starts: None, case: Case) -> None:
    mode, stage, victims, number = case
    base = Path(tempfile.mkdtemp(prefix=".skep-left-", dir=Path.home()))
    with stand(base, mode) as it:
        it.start(stage)
        it.reach(stage)
        pids = [it.victim(victim) for victim in victims]
        assert all(pids)
        for pid in pids:
            send(pid, number)
        if number == signal.SIGSTOP:
            assert eventually(lambda: all(state(pid) in "TZ" for pid in pids))
            for pid in pids:
                send(pid, signal.SIGCONT)
        left = it.end(alone=stage not in ("snapshot", "collecting") and "guardian" not in victims)
        judge(it, case, left)
        if left.code < 0:
            the_next_one_clears(it)
        assert it.on_disk() == kept(case, left)
        assert it.unexpected() == []


def kept(case: Case, left: Left) -> list[str]:
    """The tree of a run whose patch could not be taken, which was told."""
    told = re.findall("what the worker wrote is kept in (.*)$", left.said, flags=re.M)
    assert len(told) <= (case[1:3] == ("collecting", ("git",)) and left.code == 1)
    return told


def judge(it: Stand, case: Case, left: Left) -> None:
    """Whether exit status and words are true."""
    mode, stage, victims, number = case
    assert "Traceback" not in left.said, left.said
    assert "\nskep: skep:" not in left.said
    lines = [line for line in left.said.splitlines() if line.startswith("skep: ")]
    if left.code == 0:
        assert left.done, f"0, and the worker has not done its work: {left.said}"
    elif left.code < 0:
        assert victims[-1] == "skep" or "skep" in victims, f"dead by a signal nobody sent to it: {left.said}"
        assert -left.code == number
    elif left.code == 125:
        assert lines, "125 without a word"
    elif it.is_run:
        refused = {2} if victims == ("git",) else set[int]()  # a repository that git could not read
        assert left.code in {1, 128 + number, 128 + signal.SIGKILL} | refused and lines, left
    else:
        assert left.code in (128 + number, 128 + signal.SIGKILL), left
    if mode == "exec" and stage == "worker" and victims in (("skep",), ("worker",), ("bwrap",)) and left.code:
        assert left.code in (-number, 128 + number), left
    if victims == ("guardian",) and stage in ("worker", "ending", "verification") and left.code:
        assert LOST in left.said, left
    if number == signal.SIGSTOP:
        assert left.code == (125 if stage == "clone" else 0), left  # at that gate bwrap has others write its maps
    if number == signal.SIGKILL and stage not in ("sealing", "ending", "collecting"):
        assert left.code != 0
    if it.is_run and left.code >= 0:
        states = {str(run["state"]) for run in left.runs}
        assert states <= {"completed", "failed"}, left
        assert left.code != 0 or states == {"completed"}


def the_next_one_clears(it: Stand) -> None:
    """What a killed skep left on disk is gone after the next; a run it had begun is on record as failed."""
    assert not it.is_run or all(run["state"] in ("interrupted", "failed", "completed") for run in it.listed())
    done = it.free(it.argv(free=True))
    assert done.returncode == 0, done.stderr
    assert not it.is_run or {str(run["state"]) for run in it.listed()} <= {"completed", "failed"}


@pytest.mark.skipif(
    shutil.which("strace") is None and "SKEP_SANDBOX_MUST_WORK" not in os.environ, reason="strace is not installed"
)
def test_a_skep_that_is_traced_itself_runs_its_command(sandbox_starts: None) -> None:
    """Nobody is traced twice, and so the guardian goes without a hold on bwrap."""
    with stand(Path(tempfile.mkdtemp(prefix=".skep-left-", dir=Path.home())), "exec") as it:
        strace = ["strace", "-f", "-qq", "-e", "trace=none", "-o", "/dev/null"]
        done = it.free([*strace, str(SKEP), "exec", "--", "sh", "-c", "echo hi; exit 3"])
        assert (done.returncode, done.stdout) == (3, "hi\n"), done.stderr
