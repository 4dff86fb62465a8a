"""The log on disk: durable, mended after a crash, and every file of a run held by it."""

from __future__ import annotations

import json
import os
import resource
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from skep_cli.errors import SkepError
from skep_cli.evidence import audit
from skep_cli.evidence.audit import Log, check
from skep_cli.evidence.state import RunFolder

pytestmark = pytest.mark.guarantee("record-chain")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "1m8n770yq"
    path.mkdir()
    return RunFolder(path)


@contextmanager
def small_files() -> Generator[None]:
    """No file may grow beyond 4 KiB: what a full disk does to a write, without a disk. No fixture, since pytest writes
    to its own output, which may be a file, before a fixture ends.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines(folder: RunFolder) -> list[bytes]:
    return folder.log.read_bytes().splitlines(keepends=True)


def test_what_is_appended_holds_and_is_owners_only(folder: RunFolder) -> None:
    log = Log(folder)
    for number in range(5):
        log.append("thing", {"n": number, "path": "a\udcffb\n"})
    log.close()
    checked = check(folder)
    assert checked.problem is None
    assert [event.data["n"] for event in checked.events] == list(range(5))
    assert checked.events[0].data["path"] == "a\udcffb\n"
    assert folder.log.stat().st_mode & 0o777 == 0o600


def test_a_reopened_log_goes_on_where_it_ended(folder: RunFolder) -> None:
    for number in range(3):
        log = Log(folder)
        log.append("thing", {"n": number})
        log.close()
    checked = check(folder)
    assert checked.problem is None and len(checked.events) == 3
    assert checked.last("thing") == {"n": 2}


def test_notes_of_many_threads_are_all_there_and_in_one_chain(folder: RunFolder) -> None:
    log = Log(folder)

    def work(number: int) -> None:
        for count in range(50):
            log.note("egress", {"thread": number, "count": count})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    log.append("between", {})
    for thread in threads:
        thread.join()
    log.close()
    checked = check(folder)
    assert checked.problem is None and len(checked.events) == 401
    per_thread = [[e.data["count"] for e in checked.events if e.data.get("thread") == n] for n in range(8)]
    assert per_thread == [list(range(50))] * 8


def test_an_unfinished_line_is_cut_off_and_the_record_says_so(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("thing", {})
    log.close()
    with folder.log.open("ab") as file:
        file.write(b'{"seq":2,"time":"20')
    torn = check(folder).problem
    assert torn is not None and torn.torn and torn.line == 2
    log = Log(folder)
    log.append("thing", {})
    log.close()
    checked = check(folder)
    assert checked.problem is None
    assert [event.kind for event in checked.events] == ["thing", "recovered", "thing"]
    assert checked.events[1].data["bytes_dropped"] == 19


def test_lines_the_head_does_not_know_are_kept_and_the_record_says_so(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("thing", {"n": 1})
    behind = folder.head.read_bytes()
    log.append("thing", {"n": 2})
    log.close()
    folder.head.write_bytes(behind)
    torn = check(folder).problem
    assert torn is not None and torn.torn and torn.line == 2
    Log(folder).close()
    checked = check(folder)
    assert checked.problem is None
    assert [event.kind for event in checked.events] == ["thing", "thing", "recovered"]


def test_a_log_that_was_tampered_with_is_not_opened(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("thing", {})
    log.append("thing", {})
    log.close()
    folder.log.write_bytes(lines(folder)[0])
    with pytest.raises(SkepError, match="line 2"):
        Log(folder)


def test_a_record_for_which_there_is_no_room_is_not_half_there(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("thing", {})
    with small_files(), pytest.raises(OSError, match=r"."):
        log.append("large", {"text": "x" * 5000})
    log.append("thing", {})
    log.close()
    checked = check(folder)
    assert checked.problem is None and [event.kind for event in checked.events] == ["thing", "thing"]


def test_a_note_for_which_there_is_no_room_is_told_and_nothing_follows_it(folder: RunFolder) -> None:
    told: list[OSError] = []
    log = Log(folder, on_failure=told.append)
    with small_files():
        log.note("egress", {})
        log.note("egress", {"text": "x" * 5000})
        log.note("egress", {})
    assert len(told) == 1 and log.failure is told[0]
    with pytest.raises(OSError, match=r"."):
        log.append("thing", {})
    log.close()
    assert [event.kind for event in check(folder).events] == ["egress"]


@pytest.mark.parametrize("name", ["patch.diff", "worker.log", "policy.json", "run.json"])
@pytest.mark.parametrize("how", ["changed", "removed", "replaced by a link", "replaced by a folder"])
def test_a_file_that_is_not_what_was_recorded_is_named(folder: RunFolder, name: str, how: str) -> None:
    log = Log(folder)
    names = ("patch.diff", "worker.log", "policy.json")
    for each in names:
        (folder.path / each).write_text(each)
    log.append("sealed", {"files": {each: audit.digest(folder.path / each) for each in names}})
    log.keep("run.json", b"{}\n", "verdict", {})
    log.close()
    assert check(folder).problem is None and check(folder).files == 4
    path = folder.path / name
    content = path.read_bytes()
    path.unlink()
    if how == "changed":
        path.write_bytes(content + b" ")
    elif how == "replaced by a link":
        (folder.path / "elsewhere").write_bytes(content)
        path.symlink_to(folder.path / "elsewhere")
    elif how == "replaced by a folder":
        path.mkdir()
    problem = check(folder).problem
    assert problem is not None and problem.file == name and not problem.torn


def test_a_file_that_was_not_there_and_is_now_is_named(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("sealed", {"files": {"verify.log": None}})
    log.close()
    assert check(folder).problem is None
    (folder.path / "verify.log").write_text("all passed, I promise")
    problem = check(folder).problem
    assert problem is not None and problem.file == "verify.log" and "added" in problem.text


def test_the_last_digest_of_a_file_counts(folder: RunFolder) -> None:
    log = Log(folder)
    log.keep("run.json", b"first\n", "sealed", {"files": {}})
    log.keep("run.json", b"second\n", "verdict", {})
    log.close()
    assert check(folder).problem is None
    folder.record.write_bytes(b"first\n")
    assert check(folder).problem is not None


def test_a_crash_between_a_record_and_its_file_is_mended(folder: RunFolder) -> None:
    log = Log(folder)
    log.keep("run.json", b"first\n", "sealed", {})
    log.keep("run.json", b"second\n", "verdict", {})
    log.close()
    os.replace(folder.record, folder.path / "run.json.next")
    folder.record.write_bytes(b"first\n")
    assert check(folder).problem is None
    assert folder.record.read_bytes() == b"second\n"


def test_a_head_that_is_gone_is_noticed(folder: RunFolder) -> None:
    log = Log(folder)
    log.append("thing", {})
    log.close()
    folder.head.unlink()
    problem = check(folder).problem
    assert problem is not None and problem.file == "events.head"
    folder.head.write_text(json.dumps({"count": "x"}))
    assert check(folder).problem is not None


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\n"])
def test_a_run_without_a_log_does_not_hold(folder: RunFolder, content: bytes | None) -> None:
    if content is not None:
        folder.log.write_bytes(content)
    assert check(folder).problem is not None
