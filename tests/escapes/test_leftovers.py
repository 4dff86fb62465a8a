"""The worker leaves nothing behind, however it or skep ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from .worker import SKEP, Worker, eventually, processes_with

pytestmark = pytest.mark.sandbox


@pytest.mark.guarantee("gone-processes")
def test_a_background_child_ends_with_the_command(worker: Worker) -> None:
    tag = f"1000{os.getpid()}"
    assert worker.sh(f"setsid sleep {tag} & (sleep {tag} &) ; echo done") == "done"
    assert eventually(lambda: processes_with(tag) == [])


@pytest.mark.guarantee("gone-processes")
@pytest.mark.parametrize(
    "number",
    [
        *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGABRT),
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGXCPU, signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1),
    ],
    ids=lambda number: number.name,
)
def test_nothing_survives_a_signal_to_skep(worker: Worker, number: signal.Signals) -> None:
    tag = f"1000{os.getpid()}"
    before = tree(worker.workspace)
    command = worker.argv("sh", "-c", f"setsid sleep {tag} & sleep {tag}; true", flags=("--allow", "example.com"))
    with subprocess.Popen(command, cwd=worker.workspace, env=worker.environ(), stderr=subprocess.DEVNULL) as skep:
        assert eventually(lambda: len(processes_with(f"sleep\0{tag}")) == 2)
        skep.send_signal(number)
        if number == signal.SIGPIPE:
            assert ignored(skep.pid, number) and skep.poll() is None, "Python ignores it, and so the command goes on"
            skep.kill()
        assert skep.wait(60) != 0
    assert eventually(lambda: processes_with(tag) == [])
    assert tree(worker.workspace) == before


def ignored(pid: int, number: int) -> bool:
    [mask] = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigIgn" in line]
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.guarantee("gone-processes", "gone-files")
@pytest.mark.parametrize("stage", ["the worker", "the verification"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=lambda number: number.name)
def test_nothing_survives_a_run_that_is_killed_and_the_next_clears_what_is_on_disk(
    worker: Worker, stage: str, number: signal.Signals
) -> None:
    tag = f"1001{os.getpid()}"
    repo = worker.home / "repo"
    repo.mkdir()
    (repo / "file").write_text("x\n")
    before = tree(repo)
    sleep = f"sh -c 'setsid sleep {tag} & sleep {tag}; true'"
    commands = (sleep, "true") if stage == "the worker" else ("true", sleep)
    argv = [worker.argv()[0], "run", str(repo), "task", "--worker", commands[0], "--verify", commands[1]]
    with subprocess.Popen(
        argv, cwd=worker.home, env=worker.environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as skep:
        assert eventually(lambda: len(processes_with(f"sleep\0{tag}")) == 2)
        skep.send_signal(number)
        assert skep.wait(60) != 0
    assert eventually(lambda: processes_with(tag) == [])
    assert tree(repo) == before
    assert scratch(worker), "the control: there is something to be cleared"
    again = [*argv[:-4], "--worker", "true", "--verify", "true"]
    done = subprocess.run(again, cwd=worker.home, env=worker.environ(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not scratch(worker)


def scratch(worker: Worker) -> set[str]:
    """What of runs is there only while they run."""
    runs = worker.home / ".local/state/skep/runs"
    there = {path.name for run in runs.iterdir() if run.is_dir() for path in run.iterdir()}
    return there & {"workspace", "verify", "rules", "agent"}


@pytest.mark.guarantee("gone-files")
@pytest.mark.parametrize("end", ["true", "exit 3", "kill -KILL $$"])
def test_the_tree_holds_what_the_worker_wrote_and_nothing_else(worker: Worker, end: str) -> None:
    subprocess.run(["git", "init", "-q", worker.workspace], check=True, env=worker.environ())
    before = tree(worker.home)
    flags = ("--protect", "absent/file", "--hide", str(worker.workspace / "absent-too"), "--write", str(worker.outside))
    worker.sh(f"echo mine > written; {end}", *flags)
    state = {path for path in tree(worker.home) if ".local/state" in path or ".cache" in path}
    assert tree(worker.home) - before - state == {str(worker.workspace / "written")}
    assert tree(worker.outside) == set()


@pytest.mark.guarantee("gone-files")
def test_no_mount_and_no_temporary_folder_is_left(worker: Worker) -> None:
    mounts, temporary = Path("/proc/self/mounts").read_text(), named_for_skep()
    assert worker.sh("echo x > /tmp/mine; echo x > /var/tmp/mine; cat /tmp/mine") == "x"
    assert Path("/proc/self/mounts").read_text() == mounts
    assert named_for_skep() <= temporary
    assert not Path("/tmp/mine").exists() and not Path("/var/tmp/mine").exists()


def tree(folder: Path) -> set[str]:
    return {os.path.join(root, name) for root, folders, files in os.walk(folder) for name in (*folders, *files)}


def named_for_skep() -> set[str]:
    return {str(path) for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run") for path in Path(folder).glob("*skep*")}


def test_output_to_a_file_keeps_what_others_write_to_it_meanwhile(worker: Worker) -> None:
    path = worker.outside / "log"
    with path.open("w") as log:
        command = worker.argv("sh", "-c", "echo first; cat > /dev/null; echo last")
        with subprocess.Popen(
            command, cwd=worker.workspace, env=worker.environ(), stdin=subprocess.PIPE, stdout=log
        ) as skep:
            assert eventually(lambda: path.read_text() == "first\n")
            log.write("beside\n")
            log.flush()
            assert skep.stdin is not None
            skep.stdin.close()
            assert skep.wait(60) == 0
    assert path.read_text() == "first\nbeside\nlast\n"


STOP_ALL = "import os, signal, time; os.kill(0, signal.SIGSTOP); print('on', flush=True); time.sleep({seconds})"


@pytest.mark.guarantee("gone-processes")
@pytest.mark.parametrize("command", ["exec", "run"])
def test_a_worker_that_stops_its_whole_process_group_holds_nobody_up(worker: Worker, command: str) -> None:
    """Bubblewrap is in the group, and so skep took it for a Ctrl-Z: with no shell to continue it, it stood still for
    ever, the --wall limit gone by.
    """

    def stopping(seconds: int, wall: str) -> subprocess.CompletedProcess[str]:
        words = ["python3", "-c", STOP_ALL.format(seconds=seconds)]
        if command == "exec":
            argv = worker.argv(*words, flags=("--wall", wall))
        else:
            argv = [str(SKEP), "run", ".", "t", "--wall", wall, "--worker", shlex.join(words)]
        return subprocess.run(
            argv,
            cwd=worker.workspace,
            env=worker.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            start_new_session=True,
        )

    done = stopping(0, "60s")
    assert done.returncode == 0 and "on\n" in done.stdout, done.stderr
    for wall in ("2s", "8s", "60s"):  # the first one that this machine is quick enough to begin in
        done = stopping(600, wall)
        if "on\n" in done.stdout:
            break
    assert done.returncode == 124 and "on\n" in done.stdout, done.stderr
