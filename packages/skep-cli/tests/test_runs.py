"""The listing and the check of all records."""

from __future__ import annotations

import json
from pathlib import Path

from .stage import git, run, skep

KEYS = {"id", "repo", "task", "state", "verification", "verdict", "started", "seconds"}


def test_runs_are_listed_newest_first_with_the_keys_scripts_read(state: Path, repo: Path) -> None:
    first, _ = run(state, repo, "echo x > f", verify="true", task="one")
    second, _ = run(state, repo, "exit 3", task="two")
    assert skep(state, "approve", first.id).returncode == 0
    listed = json.loads(skep(state, "runs", "--json").stdout)
    assert [row["id"] for row in listed] == [second.id, first.id]
    assert all(set(row) == KEYS for row in listed)
    assert listed[1] | {"started": "", "seconds": 0} == {
        "id": first.id,
        "repo": str(repo),
        "task": "one",
        "state": "completed",
        "verification": "passed",
        "verdict": "approved",
        "started": "",
        "seconds": 0,
    }
    told = skep(state, "runs").stdout
    assert told.index(second.id) < told.index(first.id) and "approved" in told


def test_folders_that_are_damaged_do_not_break_the_listing(state: Path, repo: Path) -> None:
    good, _ = run(state, repo, "true")
    _, bad = run(state, repo, "true")
    bad.record.write_text("{")
    (bad.path.parent / "1m0000000").mkdir()
    (bad.path.parent / "1m0000001").write_text("a file")
    listed = {row["id"]: row["state"] for row in json.loads(skep(state, "runs", "--json").stdout)}
    assert listed == {good.id: "completed", bad.id: "unreadable", "1m0000000": "unreadable", "1m0000001": "unreadable"}
    assert skep(state, "runs").returncode == 0
    for how in ("review", "approve", "deny"):
        told = skep(state, how, bad.id)
        assert told.returncode == 1 and len(told.stderr.splitlines()) == 1, told.stderr


def test_a_run_that_is_going_is_running_and_one_whose_skep_is_dead_failed(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, "true")
    text = folder.record.read_text().replace('"state": "completed"', '"state": "running"')
    folder.record.write_text(text)
    assert json.loads(skep(state, "runs", "--json").stdout)[0]["state"] == "failed"
    folder.lock.take()
    assert json.loads(skep(state, "runs", "--json").stdout)[0]["state"] == "running"
    folder.lock.release()
    assert done.id in skep(state, "runs").stdout


def test_no_runs_are_no_error(state: Path) -> None:
    assert json.loads(skep(state, "runs", "--json").stdout) == []
    for words in (("runs",), ("audit", "verify")):
        done = skep(state, *words)
        assert done.returncode == 0 and "no runs" in done.stdout
    assert not (state / "skep").exists()


def test_a_task_and_a_path_in_the_listing_are_shown_and_not_obeyed(state: Path, repo: Path) -> None:
    run(state, repo, "true", task="x\x1b[2J\ny" + "z" * 500)
    told = skep(state, "runs").stdout
    assert "\x1b" not in told and len(told.splitlines()) == 2 and max(map(len, told.splitlines())) < 400


def test_all_records_are_checked_and_the_first_wrong_line_is_named(state: Path, repo: Path) -> None:
    good, _ = run(state, repo, "echo x > f")
    bad, folder = run(state, repo, "echo x > f")
    done = skep(state, "audit", "verify")
    assert done.returncode == 0 and done.stdout.count("holds") == 2
    lines = folder.log.read_bytes().splitlines(keepends=True)
    folder.log.write_bytes(b"".join([lines[0], *lines[2:]]))
    done = skep(state, "audit", "verify")
    assert done.returncode == 1
    assert f"{good.id}: holds" in done.stdout and f"{bad.id}: line 2: does not follow" in done.stdout
    assert skep(state, "audit", "verify", good.id).returncode == 0
    done = skep(state, "audit", "verify", bad.id)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


def test_a_torn_last_line_is_told_apart_from_tampering(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "echo x > f")
    with folder.log.open("ab") as file:
        file.write(b'{"seq":')
    told = skep(state, "audit", "verify", "last")
    assert told.returncode == 1 and "crash" in told.stdout
    assert skep(state, "approve", "last", "--force").returncode == 0, "the lines before it are intact"
    assert skep(state, "audit", "verify", "last").returncode == 0
    assert git(repo, "branch", "--list", "skep/*") != ""
