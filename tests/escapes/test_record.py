"""What happened is on record: layers, egress, verdicts, in a log that cannot be changed unseen."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .worker import SKEP, Worker

pytestmark = pytest.mark.sandbox

MEND = "sh -c 'sed -i s/wrong/right/ answer'"
VERIFY = "grep -q right answer"


class Operator:
    """A person with a repository, who starts runs and judges them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.git("init", "-q", "-b", "main")
        (worker.workspace / "answer").write_text("wrong\n")
        self.git("add", "answer")
        self.git("-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "base")

    def git(self, *words: str) -> str:
        command = ["git", "-C", str(self.worker.workspace), *words]
        return subprocess.run(command, env=self.worker.environ(), capture_output=True, text=True, check=True).stdout

    def skep(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SKEP, *words],
            cwd=self.worker.home,
            env=self.worker.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def run(self, *flags: str, by: str = MEND) -> dict[str, Any]:
        done = self.skep("run", str(self.worker.workspace), "mend the answer", "--worker", by, "--json", *flags)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def operator(worker: Worker) -> Operator:
    return Operator(worker)


@pytest.mark.guarantee("record-layers")
def test_a_run_says_which_layers_were_in_force(operator: Operator) -> None:
    layers = operator.run()["layers"]
    assert {name for name in ("filesystem", "network", "seccomp", "pid", "hidden") if layers[name] is True} == {
        "filesystem", "network", "seccomp", "pid", "hidden",
    }  # fmt: skip


@pytest.mark.guarantee("record-layers")
def test_a_run_without_the_boundary_is_marked(operator: Operator) -> None:
    bare, bounded = operator.run("--execution-mode", "workspace"), operator.run()
    assert True not in bare["layers"].values()
    for done, mode in ((bare, "workspace"), (bounded, "sandbox")):
        assert json.loads((Path(done["audit"]) / "run.json").read_text())["mode"] == mode
        assert ("boundary  NONE" in operator.skep("review", done["id"]).stdout) == (mode == "workspace")


@pytest.mark.guarantee("record-egress")
def test_every_egress_decision_is_recorded(operator: Operator) -> None:
    ask = "for host in one.test two.test one.test; do curl -sS -m 60 http://$host:81/; done; true"
    done = operator.run("--allow", "listed.test", by=f"sh -c '{ask}'")
    denied = {(entry["host"], entry["port"], entry["reason"]) for entry in done["egress"]["denied"]}
    assert denied == {("one.test", 81, "not-listed"), ("two.test", 81, "not-listed")}
    events = [json.loads(line) for line in (Path(done["audit"]) / "events.jsonl").read_text().splitlines()]
    assert len([event for event in events if event["kind"] == "egress"]) >= 3


CHANGES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda lines: [lines[0], lines[1].replace('"seq":2,', '"seq":2, '), *lines[2:]],
    "dropped": lambda lines: [lines[0], *lines[2:]],
    "reordered": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "cut off": lambda lines: lines[:-1],
    "repeated": lambda lines: [*lines, lines[-1]],
}


@pytest.mark.guarantee("record-chain")
@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_was_tampered_with_is_found(operator: Operator, change: str) -> None:
    done = operator.run()
    assert operator.skep("audit", "verify", done["id"]).returncode == 0
    log = Path(done["audit"]) / "events.jsonl"
    log.chmod(0o600)
    lines = log.read_text().splitlines(keepends=True)
    changed = CHANGES[change](lines)
    assert changed != lines
    log.write_text("".join(changed))
    found = operator.skep("audit", "verify", done["id"])
    assert found.returncode == 1 and "Traceback" not in found.stderr


@pytest.mark.guarantee("record-apart")
def test_the_worker_cannot_write_the_record_of_its_run(operator: Operator) -> None:
    state = operator.worker.home / ".local/state/skep"
    script = f"""
for file in $(find {state} -name events.jsonl -o -name run.json -o -name worker.log); do echo x >> $file; done
echo x > {state}/planted; echo x > {state}/runs/$SKEP_RUN/planted; rm -r {state}/runs
echo kept > $SKEP_RESULTS/kept; sed -i s/wrong/right/ answer
"""
    (operator.worker.workspace / "attack.sh").write_text(script)
    done = operator.run(by="sh attack.sh")
    assert done["files_changed"] == ["answer"]
    assert (Path(done["results"]) / "kept").read_text() == "kept\n"
    assert list(state.rglob("planted")) == []
    assert operator.skep("audit", "verify", done["id"]).returncode == 0


@pytest.mark.guarantee("record-verdict")
@pytest.mark.parametrize("verify", [("--verify", "grep -q other answer"), ()], ids=["failed", "none"])
def test_what_is_not_verified_is_approved_by_force_only(operator: Operator, verify: tuple[str, ...]) -> None:
    done = operator.run(*verify)
    assert operator.skep("approve", done["id"]).returncode != 0
    assert "skep/" not in operator.git("branch", "--all")
    assert operator.skep("approve", done["id"], "--force").returncode == 0
    assert operator.git("show", f"skep/{done['id']}:answer") == "right\n"
    assert last_record(done)["forced"] is True
    assert operator.skep("audit", "verify", done["id"]).returncode == 0


@pytest.mark.guarantee("record-verdict")
def test_what_is_verified_is_approved_and_nothing_checked_out_moves(operator: Operator) -> None:
    head = operator.git("rev-parse", "HEAD")
    done = operator.run("--verify", VERIFY)
    assert done["verification"]["outcome"] == "passed"
    assert operator.skep("approve", done["id"]).returncode == 0
    assert last_record(done)["forced"] is False
    assert operator.git("show", f"skep/{done['id']}:answer") == "right\n"
    assert operator.git("rev-parse", "HEAD") == head and operator.git("status", "--porcelain") == ""


def last_record(done: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(done["audit"]) / "events.jsonl").read_text().splitlines()[-1])["data"]
