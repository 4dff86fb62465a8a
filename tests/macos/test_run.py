"""`skep run` the macOS way: the worker works in a copy that stands where it stands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from skep_seatbelt.evaluate import Profile
from skep_seatbelt.places import canonical

from tests.escapes.worker import processes_with

from .stage import Machine

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one: pytest -m macos")

POLICY = """
[filesystem]
protect = ["deploy"]
hide = ["secret"]
"""


@pytest.fixture
def repo(machine: Machine) -> Machine:
    """`work` is a repository with a function to mend, something to protect and something to hide."""
    for name, text in {
        "calc.py": "def add(a, b):\n    return a - b\n",
        "deploy/key": "k\n",
        "secret/key": "hush\n",
        "sub/x": "x\n",
        "skep.toml": POLICY,
    }.items():
        (machine.work / name).parent.mkdir(exist_ok=True)
        (machine.work / name).write_text(text)
    machine.git("init", "-q", "-b", "main")
    machine.git("add", "-A")
    machine.git("commit", "-qm", "base")
    return machine


def run(repo: Machine, script: str, *flags: str, where: str = ".", **how: Any) -> tuple[Any, dict[str, Any]]:
    """What became of a run whose worker is a shell script, and its document."""
    program = repo.base / "worker.sh"
    program.write_text(script)
    done = repo.skep("run", where, "mend it", "--worker", f"sh {program}", "--json", *flags, **how)
    lines = done.stdout.splitlines()
    return done, json.loads(lines[-1]) if lines else {}


def test_a_run_gives_a_verified_patch_of_a_copy_and_leaves_the_tree_alone(repo: Machine) -> None:
    script = 'sed -i "s/a - b/a + b/" calc.py; pwd > "$SKEP_RESULTS/where"; echo "$TMPDIR" >> "$SKEP_RESULTS/where"'
    before = (repo.work / "calc.py").read_text()
    done, document = run(repo, script, "--verify", "grep -q 'a + b' calc.py")
    assert done.returncode == 0, done.stderr
    assert document["workspace"] == "copy" and document["files_changed"] == ["calc.py"]
    assert document["verification"]["outcome"] == "passed"
    assert (repo.work / "calc.py").read_text() == before and repo.git("status", "--porcelain") == ""
    where, temporary = Path(document["results"], "where").read_text().split()
    assert Path(where).is_relative_to(Path(document["audit"], "workspace"))
    assert Path(temporary).is_relative_to(repo.temporary)
    assert list(repo.temporary.iterdir()) == [] and not Path(document["audit"], "workspace").exists()
    assert repo.skep("approve", document["id"]).returncode == 0
    assert "a + b" in repo.git("show", f"skep/{document['id']}:calc.py")


def test_the_profile_on_record_is_about_the_copy_and_hides_the_original_too(repo: Machine) -> None:
    _, document = run(repo, "true")
    profile = Profile(Path(document["audit"], "boundary.txt").read_text())
    audit, tree = canonical(document["audit"]), canonical(str(repo.work))
    copy = f"{audit}/workspace"
    assert profile.allows("file-write-create", f"{copy}/new") and not profile.allows("file-write-create", f"{tree}/new")
    assert not profile.allows("file-write-data", f"{copy}/deploy/key")
    for place in (copy, tree):
        assert not profile.allows("file-read-data", f"{place}/secret/key")
        assert profile.allows("file-read-data", f"{place}/calc.py")
    assert not profile.allows("file-write-data", f"{audit}/events.jsonl")
    assert not profile.allows("file-read-data", f"{audit}/policy.json")


def test_the_worker_starts_in_the_folder_that_was_named(repo: Machine) -> None:
    _, document = run(repo, 'pwd > "$SKEP_RESULTS/where"', where="sub")
    assert Path(document["results"], "where").read_text().strip() == f"{document['audit']}/workspace/sub"


@pytest.mark.parametrize(
    ("flags", "how", "word"),
    [
        (("--workspace", "overlay"), {}, "--workspace copy"),
        ((), {"mode": "missing"}, "is missing"),
        ((), {"uid": 0}, "ordinary user"),
        ((), {"platform": "freebsd14"}, "no boundary can be applied on freebsd14"),
        ((), {"mode": "nested"}, "already inside a sandbox"),
        ((), {"mode": "idle"}, "not in force"),
        (("--memory", "1GiB"), {}, "limits.memory"),
    ],
)
def test_what_cannot_be_run_is_125_with_a_reason_and_leaves_no_record(
    repo: Machine, flags: tuple[str, ...], how: dict[str, Any], word: str
) -> None:
    done, document = run(repo, "touch started", *flags, **how)
    assert done.returncode == 125 and word in done.stderr and document == {}
    runs = repo.home / ".local/state/skep/runs"
    assert not runs.exists() or list(runs.iterdir()) == []
    assert list(repo.temporary.iterdir()) == []


def test_without_a_boundary_any_platform_will_do(repo: Machine) -> None:
    done, document = run(repo, "echo x > new", "--execution-mode", "workspace", platform="freebsd14")
    assert done.returncode == 0 and document["files_changed"] == ["new"]


def test_denials_of_the_unified_log_are_on_record(repo: Machine) -> None:
    repo.speaking_log()
    _, document = run(repo, "exit 1")
    assert [found["path"] for found in document["findings"] if found["kind"] == "denied"][:1] == ["/Users/u/x"]
    assert "/Users/u/x" in Path(document["audit"], "events.jsonl").read_text()
    assert repo.skep("audit", "verify", document["id"]).returncode == 0


def test_what_is_denied_by_name_is_in_the_log_of_the_run_and_nothing_is_left(repo: Machine) -> None:
    word = f"78{os.getpid()}"
    _, document = run(repo, f"curl -s https://denied.example; sleep {word} & exit 0")
    assert [denied["host"] for denied in document["egress"]["denied"]] == ["denied.example"]
    assert "denied.example" in Path(document["audit"], "events.jsonl").read_text()
    assert not processes_with(word)
