"""A worker without a boundary still ends with everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from skep_cli.stages import local

ENV = {"PATH": os.environ["PATH"]}


@pytest.fixture
def ends(tmp_path: Path):  # type: ignore[no-untyped-def]
    with open(os.devnull, "rb") as null, (tmp_path / "out").open("wb") as out:
        yield null.fileno(), out.fileno()


def run(
    ends: tuple[int, int],
    script: str,
    tmp_path: Path,
    wall: float | None = 30.0,
    spawned: Callable[[Callable[[], None]], None] | None = None,
) -> local.Outcome:
    return local.run(
        ["sh", "-c", script], cwd=str(tmp_path), env=ENV, stdin=ends[0], output=ends[1], wall=wall, spawned=spawned
    )


def alive(tag: str) -> bool:
    return bool(subprocess.run(["pgrep", "-f", tag], capture_output=True, check=False).stdout)


@pytest.mark.parametrize(
    ("script", "code"), [("true", 0), ("exit 42", 42), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_status_is_the_workers(ends: tuple[int, int], tmp_path: Path, script: str, code: int) -> None:
    outcome = run(ends, script, tmp_path)
    assert (outcome.exit_code, outcome.limit, outcome.exec_error) == (code, None, None)
    assert not any(value is True for value in outcome.layers.values())


def test_what_cannot_be_executed_is_told_as_a_shell_does(ends: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    for words, code, error in ((["no-such-program"], 127, 2), (["./text"], 126, 13)):
        outcome = local.run(words, cwd=str(tmp_path), env=ENV, stdin=ends[0], output=ends[1], wall=30)
        assert (outcome.exit_code, outcome.exec_error) == (code, error)


def test_output_and_errors_go_to_one_place_and_only_three_descriptors_arrive(
    ends: tuple[int, int], tmp_path: Path
) -> None:
    run(ends, "echo out; echo err >&2; ls /proc/self/fd | wc -l", tmp_path)
    assert (tmp_path / "out").read_text() == "out\nerr\n4\n"


def test_the_worker_leads_a_process_group_of_its_own(ends: tuple[int, int], tmp_path: Path) -> None:
    run(ends, "kill -TERM 0", tmp_path)
    assert run(ends, "kill -TERM 0", tmp_path).exit_code == 143


def test_daemons_end_with_the_worker(ends: tuple[int, int], tmp_path: Path) -> None:
    tag = f"71{os.getpid()}"
    outcome = run(
        ends,
        f"setsid sh -c 'trap \"\" TERM; setsid sleep {tag} & sleep {tag}' & (setsid sleep {tag} &); exit 0",
        tmp_path,
    )
    assert outcome.exit_code == 0 and not alive(f"sleep {tag}")


def test_the_wall_limit_ends_everything(ends: tuple[int, int], tmp_path: Path) -> None:
    tag = f"72{os.getpid()}"
    outcome = run(ends, f"trap '' TERM INT; setsid sleep {tag} & sleep {tag}", tmp_path, wall=0.3)
    assert outcome.timed_out and not alive(f"sleep {tag}")


def test_the_first_signal_is_the_workers_and_the_second_ends_it(ends: tuple[int, int], tmp_path: Path) -> None:
    def soon(kill: object) -> None:
        def send() -> None:
            while not (tmp_path / "ready").exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send).start()

    assert (
        run(ends, "trap 'exit 9' TERM; touch ready; while :; do sleep 0.05; done", tmp_path, spawned=soon).exit_code
        == 9
    )

    def twice(kill: object) -> None:
        def send() -> None:
            for name in ("ready2", "got"):
                while not (tmp_path / name).exists():
                    time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send).start()

    script = "trap 'touch got' TERM; touch ready2; while :; do sleep 0.05; done"
    assert run(ends, script, tmp_path, spawned=twice).exit_code == 137


def test_it_can_be_ended_from_another_thread(ends: tuple[int, int], tmp_path: Path) -> None:
    def spawned(kill: Callable[[], None]) -> None:
        threading.Timer(0.2, kill).start()

    assert run(ends, "sleep 60", tmp_path, spawned=spawned).exit_code == 137


def test_everything_ends_when_skep_is_killed(tmp_path: Path) -> None:
    tag = f"73{os.getpid()}"
    script = (
        f"from skep_cli.stages import local\n"
        f"words = ['sh', '-c', 'setsid sleep {tag} & touch ready; sleep {tag}']\n"
        f"local.run(words, cwd={str(tmp_path)!r}, env={ENV!r}, stdin=0, output=1, wall=None)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert alive(f"sleep {tag}")
    process.kill()
    process.wait()
    while alive(f"sleep {tag}"):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_signals_are_handled_as_before_afterwards(ends: tuple[int, int], tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in local.FORWARDED}
    run(ends, "true", tmp_path)
    assert {number: signal.getsignal(number) for number in local.FORWARDED} == before
