"""The state folder: ids, locks, leftovers, and what is said when it cannot be used."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from skep_cli.errors import StateError, UsageError
from skep_cli.evidence.lock import Lock
from skep_cli.evidence.state import RunFolder, Runs, replace, run_id

HOLD = """
import sys, time
from pathlib import Path
from skep_cli.evidence.state import Runs
print(Runs(Path(sys.argv[1])).create().id, flush=True)
time.sleep(60)
"""


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "skep")


def test_ids_sort_by_time_and_are_words_for_shells_and_git() -> None:
    times = [0, 1, 31, 32, 1_796_000_000_000, 1_796_000_000_001, 32**9 - 1]
    ids = [run_id(time) for time in times]
    assert ids == sorted(ids) and len(set(ids)) == len(ids)
    assert all(len(text) == 9 and text.isalnum() and text.lower() == text for text in ids)


def test_a_run_folder_is_the_owners_only(runs: Runs) -> None:
    folder = runs.create()
    for path in (runs.root, runs.folder, folder.path):
        assert path.stat().st_mode & 0o777 == 0o700
    folder.lock.release()


def test_a_state_folder_others_could_read_is_closed(runs: Runs) -> None:
    runs.root.mkdir(mode=0o755)
    runs.create().lock.release()
    assert runs.root.stat().st_mode & 0o777 == 0o700


def create(root: str, count: int, out: multiprocessing.SimpleQueue[str]) -> None:
    for _ in range(count):
        folder = Runs(Path(root)).create()
        out.put(folder.id)
        folder.lock.release()


def test_ids_are_unique_when_many_start_at_once(runs: Runs) -> None:
    context = multiprocessing.get_context("spawn")
    out: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    processes = [context.Process(target=create, args=(str(runs.root), 20, out)) for _ in range(4)]
    for process in processes:
        process.start()
    ids = [out.get() for _ in range(80)]
    for process in processes:
        process.join()
    assert len(set(ids)) == 80 and sorted(ids, reverse=True) == [run.id for run in runs.all()]


def made(runs: Runs, *ids: str) -> None:
    for each in ids:
        (runs.folder / each).mkdir(parents=True)


def test_a_run_is_found_by_its_id_the_beginning_of_it_or_last(runs: Runs) -> None:
    made(runs, "1m8n00001", "1m8n00002", "1m8p00000")
    assert runs.find("1m8n00001").id == "1m8n00001"
    assert runs.find("1m8p").id == "1m8p00000"
    assert runs.find("last").id == "1m8p00000"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [("1m8n", "begins 2 runs"), ("9", "no run '9'"), ("", "no run"), ("../1m8p00000", "no run"), ("1M8P", "no run")],
)
def test_what_is_not_one_run_is_a_usage_error(runs: Runs, wanted: str, says: str) -> None:
    made(runs, "1m8n00001", "1m8n00002", "1m8p00000")
    with pytest.raises(UsageError, match=says) as error:
        runs.find(wanted)
    assert error.value.exit_code == 2


def test_names_that_are_no_ids_are_no_runs(runs: Runs) -> None:
    made(runs, "1m8n00001", "notes", "1m8n00001.bak", "1M8N00001")
    assert [run.id for run in runs.all()] == ["1m8n00001"]


def test_no_state_folder_is_no_runs(runs: Runs) -> None:
    assert runs.all() == [] and not runs.root.exists()
    with pytest.raises(UsageError, match="there are none"):
        runs.find("last")


def test_a_file_in_the_way_is_one_line(runs: Runs) -> None:
    runs.root.write_text("x")
    with pytest.raises(StateError) as error:
        runs.create()
    assert error.value.exit_code == 125 and "XDG_STATE_HOME" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_one_line(runs: Runs, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StateError, match="XDG_STATE_HOME"):
            runs.create()
    finally:
        tmp_path.chmod(0o700)


def test_a_run_is_alive_while_its_process_is_and_dead_after_it_was_killed(runs: Runs) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(runs.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run = runs.find(process.stdout.readline().strip())
    assert run.alive() and list(runs.dead()) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not run.alive()


def test_the_dead_are_found_once_and_nobody_else_has_them_meanwhile(runs: Runs) -> None:
    made(runs, "1m8n00001")
    (runs.folder / "1m8n00001/lock").touch()
    for run in runs.dead():
        assert run.id == "1m8n00001"
        assert not Lock(run.path / "lock").take(wait=False)
    assert list(runs.dead()) == []


def test_a_lock_whose_file_was_removed_while_it_was_waited_for_is_taken_anew(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    first.take()
    waiting = threading.Thread(target=second.take)
    waiting.start()
    first.release()
    waiting.join(60)
    assert not waiting.is_alive()
    assert (tmp_path / "lock").exists() and not Lock(tmp_path / "lock").take(wait=False)
    second.release()
    assert not (tmp_path / "lock").exists()


def test_a_lock_is_not_made_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"."):
        Lock(tmp_path / "lock").take()
    assert not (tmp_path / "elsewhere").exists()


def test_a_replaced_file_is_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"one")
    replace(path, b"two")
    assert path.read_bytes() == b"two" and os.listdir(tmp_path) == ["file"]


def test_the_names_in_a_run_folder_are_below_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "1m8n00001")
    for path in (run.record, run.log, run.head, run.git, run.patch, run.results, run.workspace, run.verify, run.rules):
        assert path.parent == run.path


def test_many_that_begin_and_clear_at_once_take_nothing_from_each_other(runs: Runs) -> None:
    code = f"""
from pathlib import Path
from skep_cli.workspace.removal import remove
from skep_cli.evidence.sealing import clear_dead
from skep_cli.evidence.state import Runs
runs = Runs(Path({str(runs.root)!r}))
for _ in range(150):
    clear_dead(runs)
    folder = runs.create()
    folder.record.write_text("")
    remove(folder.path)
    folder.lock.release()
"""
    started = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(6)]
    assert [process.communicate()[1] for process in started] == [""] * 6


def test_an_empty_folder_with_an_id_is_no_run_and_goes_with_a_later_one(runs: Runs) -> None:
    """As a skep left it that was killed between making a folder and locking it."""
    made(runs, "1m8n00001", "1m8n00002", "1m8n00003")
    (runs.folder / "1m8n00002/run.json").touch()
    for name in ("1m8n00001", "1m8n00002"):
        os.utime(runs.folder / name, (0, 0))
    fresh = runs.create()
    assert set(os.listdir(runs.folder)) == {"1m8n00002", "1m8n00003", fresh.id}, (
        "the last may have its lock in a moment"
    )
    fresh.lock.release()


def test_a_run_that_is_discarded_is_none_from_the_first_moment_and_the_rest_goes_with_a_later_one(runs: Runs) -> None:
    run = runs.create()
    (run.path / "git").mkdir()
    run.lock.release()
    runs.discard(run)
    runs.discard(run)
    assert os.listdir(runs.folder) == []
    left = runs.folder / f".{run.id}-1"
    (left / "git/deep").mkdir(parents=True)
    os.utime(left, (0, 0))
    fresh = runs.create()
    assert os.listdir(runs.folder) == [fresh.id]
    fresh.lock.release()
