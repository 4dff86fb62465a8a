"""Standard descriptors that are closed, full or gone: one line, no traceback, and no status that lies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FULL = "skep: standard output: No space left on device\n"


def shell(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """`$SKEP` in a line of shell; what it writes to 1 and 2 is ours unless the line says otherwise."""
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "XDG_STATE_HOME": str(home / "state"),
        "SKEP": f"{sys.executable} -m skep_cli",
    }
    return subprocess.run(
        ["sh", "-c", line], cwd=home, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )


@pytest.mark.parametrize("words", ["--help", "exec --help", "policy show", "policy schema", "runs --json", "workers"])
def test_a_command_whose_output_has_no_room_says_so(words: str, tmp_path: Path) -> None:
    done = shell(f"$SKEP {words} > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (125, FULL)
    assert shell(f"$SKEP {words} > /dev/null", tmp_path).returncode == 0


@pytest.mark.parametrize("words", ["--help", "policy schema"])
def test_a_reader_that_has_enough_is_no_error_to_tell(words: str, tmp_path: Path) -> None:
    done = shell(f"$SKEP {words} | true", tmp_path)
    assert done.stderr == ""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("words", ["policy explain example.com --allow example.com", "runs"])
def test_a_closed_descriptor_is_a_null_device(words: str, closed: str, tmp_path: Path) -> None:
    done = shell(f"$SKEP {words} {closed}", tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr


@pytest.mark.sandbox
@pytest.mark.usefixtures("sandbox_starts")
class TestExec:
    @pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
    def test_the_worker_finds_a_null_device_for_a_closed_descriptor(self, closed: str, tmp_path: Path) -> None:
        script = "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done > links"
        assert shell(f"$SKEP exec -- sh -c '{script}' {closed}", tmp_path).returncode == 0
        links = (tmp_path / "links").read_text().splitlines()
        for number in closed.replace("<", ">").split(" "):
            fd = int(number[0])
            assert fd == 1 or links[fd] == "/dev/null"  # 1 was the script's own file while it looked

    def test_output_that_did_not_arrive_is_told_and_is_no_success(self, tmp_path: Path) -> None:
        done = shell("$SKEP exec -- sh -c 'echo hi' > /dev/full", tmp_path)
        assert (done.returncode, done.stderr) == (1, "skep: not all of the output arrived: No space left on device\n")
        done = shell("$SKEP exec -- sh -c 'echo hi' > there", tmp_path)
        assert (done.returncode, done.stderr, (tmp_path / "there").read_text()) == (0, "", "hi\n")

    def test_the_workers_own_failure_is_kept_when_its_output_did_not_arrive(self, tmp_path: Path) -> None:
        assert shell("$SKEP exec -- sh -c 'echo hi; exit 7' > /dev/full", tmp_path).returncode == 7

    def test_a_reader_that_has_enough_ends_the_worker_as_without_skep(self, tmp_path: Path) -> None:
        done = shell("$SKEP exec -- yes | head -n 1", tmp_path)
        assert (done.stdout, done.stderr) == ("y\n", "")

    @pytest.mark.parametrize("word", ["''", '""'])
    def test_an_empty_command_word_is_not_found(self, word: str, tmp_path: Path) -> None:
        done = shell(f"$SKEP exec -- {word} x", tmp_path)
        assert (done.returncode, done.stderr) == (127, "skep: '': No such file or directory\n")
