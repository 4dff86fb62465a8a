"""A run from its first record to its last, whatever goes wrong on the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from skep_cli.errors import CannotRun, SkepError, StateError
from skep_cli.evidence.audit import Log, check
from skep_cli.evidence.record import load
from skep_cli.evidence.state import RunFolder, Runs
from skep_cli.screen.status import Status
from skep_cli.stages.order import Hooks, Outcome, Place
from skep_cli.stages.pipeline import Pipeline
from skep_policy.events import Decision
from skep_policy.verdict import Verdict

from .stage import Plain, git, make_repo, order, run

MEND = "sed -i s/a.-.b/a+b/ calc.py"
KEPT = {
    *(
        "run.json",
        "policy.json",
        "boundary.txt",
        "events.jsonl",
        "events.head",
        "worker.log",
        "patch.diff",
        "verify.log",
    ),
    *("git", "results"),
}


def kinds(folder: RunFolder) -> list[str]:
    checked = check(folder)
    assert checked.problem is None, checked.problem
    return [event.kind for event in checked.events]


def with_bounds(state: Path, repo: Path, bounds: Callable[[object], Plain], worker: str = "true") -> Pipeline:
    given = order(repo, worker)
    return Pipeline(given, bounds(given), Runs(state / "skep"), Status(quiet=True))


def test_a_run_leaves_its_record_and_nothing_else(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, MEND, verify="sh check.sh")
    assert (done.state, done.exit_code, done.verification.outcome) == ("completed", 0, "passed")
    assert set(os.listdir(folder.path)) == KEPT
    assert all(path.lstat().st_mode & 0o077 == 0 for path in folder.path.iterdir())
    assert kinds(folder) == [
        "begun",
        "baseline",
        "policy",
        "starting",
        "started",
        "ended",
        "patch",
        "verification",
        "sealed",
    ]
    assert load(folder) == done
    assert done.seconds is not None and done.seconds > 0


def test_the_document_has_the_keys_scripts_read_and_no_others(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, "true")
    assert set(done.document(folder)) == {
        *("exit_code", "layers", "attestation", "findings", "egress", "id", "state", "audit", "results", "patch"),
        *("files_changed", "workspace", "verification"),
    }
    assert set(done.document(folder)["verification"]) == {"outcome", "command", "exit_code", "detail"}
    assert not any(value is True for value in done.layers.values())


def test_the_worker_finds_its_task_its_results_folder_and_its_run(state: Path, repo: Path) -> None:
    script = 'printf "%s|%s" "$SKEP_TASK" "$SKEP_RUN" > "$SKEP_RESULTS/told"; pwd > "$SKEP_RESULTS/where"'
    done, folder = run(state, repo, script, task="mend 'it' $(now)")
    assert (folder.results / "told").read_text() == f"mend 'it' $(now)|{done.id}"
    assert (folder.results / "where").read_text().strip() == str(folder.workspace)


def test_the_task_is_one_word_wherever_it_is_put(state: Path, repo: Path) -> None:
    script = "import sys; open('told', 'w').write(repr(sys.argv[1:]))"
    done, _ = run(state, repo, [sys.executable, "-c", script, "{task}", "--task={task}"], task="a 'b' \"c\"\n$(d)")
    told = Path(done.patch or "").read_text()
    assert repr(["a 'b' \"c\"\n$(d)", "--task=a 'b' \"c\"\n$(d)"]) in told


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_a_worker_that_fails_leaves_its_half_done_patch(state: Path, repo: Path, script: str, code: int) -> None:
    done, folder = run(state, repo, f"echo half > f; {script}")
    assert (done.state, done.exit_code, done.files_changed) == ("failed", code, ["f"])
    assert kinds(folder)[-1] == "sealed"


def test_a_worker_that_stalls_is_ended_with_everything_it_started(state: Path, repo: Path, tmp_path: Path) -> None:
    tag = f"61{os.getpid()}"
    script = f"echo x > f; (setsid sleep {tag} &); trap '' TERM INT HUP; sleep {tag}; sleep {tag}"
    done = next(
        done for done, _ in (run(state, repo, script, wall=wall) for wall in (0.5, 5, 60)) if done.files_changed
    )
    assert (done.state, done.exit_code, done.limit, done.files_changed) == ("timed-out", 124, "wall", ["f"])
    assert subprocess.run(["pgrep", "-f", f"sleep {tag}"], check=False, capture_output=True).stdout == b""


def test_a_process_left_behind_ends_with_the_worker_and_holds_nothing_up(state: Path, repo: Path) -> None:
    tag = f"62{os.getpid()}"
    done, _ = run(state, repo, f"(setsid sh -c 'sleep {tag}; echo late > f' &) ; echo done")
    assert (done.state, done.limit, done.files_changed) == ("completed", None, [])
    assert subprocess.run(["pgrep", "-f", f"sleep {tag}"], check=False, capture_output=True).stdout == b""


def test_a_worker_that_cannot_be_executed_is_told_so(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, ["./no-such-program"])
    assert (done.state, done.exit_code) == ("failed", 127)
    assert done.reason == "the worker could not be executed: ./no-such-program: No such file or directory"


def test_output_is_on_record_as_it_came(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "printf 'out\\n'; printf 'err\\n' >&2; printf '\\033[31m\\377'")
    assert (folder.path / "worker.log").read_bytes() == b"out\nerr\n\x1b[31m\xff"


@pytest.mark.parametrize(
    ("verify", "outcome", "code", "why"),
    [
        ("true", "passed", 0, ""),
        ("false", "failed", 1, ""),
        ("no-such-tool", "unavailable", 127, "no-such-tool: No such file or directory"),
        ("sh -c no-such-tool", "unavailable", 127, "exit status 127: a program it calls was not found"),
        ("./calc.py", "unavailable", 126, "./calc.py: Permission denied"),
        ("sh -c 'exit 42'", "failed", 42, ""),
        ("sh -c 'kill -9 $$'", "failed", 137, ""),
    ],
)
def test_the_verification_is_what_the_operators_command_says(
    state: Path, repo: Path, verify: str, outcome: str, code: int, why: str
) -> None:
    done, folder = run(state, repo, "echo x > y", verify=verify)
    assert (check(folder).last("verification") or {})["detail"] == why
    assert (done.verification.outcome, done.verification.command, done.verification.exit_code) == (
        outcome,
        verify,
        code,
    )


def test_a_verification_that_stalls_failed(state: Path, repo: Path) -> None:
    class Hurrying(Plain):
        def verifier(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
            self.wall = 0.5
            return super().verifier(folder, place, argv, output, hooks)

    given = order(repo, "true", verify="sleep 60")
    done, folder = Pipeline(given, Hurrying(given), Runs(state / "skep"), Status(quiet=True)).go()
    assert done.verification.outcome == "failed"
    assert (check(folder).last("verification") or {})["detail"] == "ended by the wall limit; --wall raises it"


def test_the_verification_sees_the_patch_on_a_clean_tree_and_nothing_of_the_workers(state: Path, repo: Path) -> None:
    (repo / ".venv").mkdir()
    (repo / ".venv/tool").write_text("clean\n")
    (repo / "wip").write_text("mine\n")
    (repo / "gone").mkdir()
    (repo / "gone/f").write_text("x\n")
    (repo / "kept-empty").mkdir()
    (repo / "calc.py").chmod(0o640)
    worker = (
        "echo dirty > .venv/tool; echo x > .venv/new; mkdir build; echo x > build/o; echo ok > f; ln -s f l;"
        "rm -r gone; chmod +x check.sh; echo x >> .git/config; rm wip; mkdir wip; echo y > wip/y; mkdir .venv/d"
    )
    verify = (
        'set -e; test "$(cat .venv/tool)" = clean; test ! -e .venv/new; test ! -e build; test "$(cat l)" = ok;'
        "test -L l; test ! -e gone; test -d kept-empty; test -x check.sh; git status > /dev/null;"
        'test "$(cat wip/y)" = y; test "$(stat -c %a calc.py)" = 640'
    )
    (repo / "verify.sh").write_text(verify)
    done, folder = run(state, repo, worker, verify="sh -x verify.sh")
    assert done.verification.outcome == "passed", (folder.path / "verify.log").read_text()


def test_what_verification_changes_is_no_part_of_the_patch(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, "echo x > y", verify="sh -c 'echo z > y; echo z > calc.py'")
    assert done.files_changed == ["y"] and "+x" in Path(done.patch or "").read_text()


def test_a_worker_that_never_started_leaves_nothing(state: Path, repo: Path) -> None:
    class Refusing(Plain):
        def worker(
            self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
        ) -> Outcome:
            hooks.evidence("a boundary\n")
            raise CannotRun("no user namespaces here")

    with pytest.raises(CannotRun, match="no user namespaces"):
        with_bounds(state, repo, lambda given: Refusing(given)).go()  # type: ignore[arg-type]
    assert Runs(state / "skep").all() == []


def test_a_boundary_that_fails_after_the_start_is_a_failed_run_with_a_record(state: Path, repo: Path) -> None:
    class Breaking(Plain):
        def worker(
            self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
        ) -> Outcome:
            super().worker(folder, place, argv, env, output, hooks)
            raise CannotRun("its guardian was killed")

    done, folder = with_bounds(state, repo, lambda given: Breaking(given), "echo x > f").go()  # type: ignore[arg-type]
    assert (done.state, done.reason, done.exit_code) == ("failed", "its guardian was killed", 125)
    assert kinds(folder)[-1] == "sealed"


def test_a_tree_that_cannot_be_copied_leaves_nothing(state: Path, repo: Path) -> None:
    (state / "skep").write_text("in the way")
    with pytest.raises(StateError):
        run(state, repo, "true")
    (state / "skep").unlink()
    assert not (state / "skep").exists()


def test_what_a_killed_skep_left_is_cleared_by_the_next_run(state: Path, repo: Path) -> None:
    script = f"""
import sys
sys.path[:0] = {sys.path!r}
import importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("stage", {str(Path(__file__).with_name("stage.py"))!r})
stage = importlib.util.module_from_spec(spec); sys.modules["stage"] = stage; spec.loader.exec_module(stage)
stage.run(Path({str(state)!r}), Path({str(repo)!r}), "echo going > going; sleep 63{os.getpid()}")
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    runs = Runs(state / "skep")
    wait(lambda: any((each.workspace / "going").exists() for each in runs.all()))
    process.send_signal(signal.SIGKILL)
    process.wait()
    dead = runs.all()[0]
    wait(lambda: not subprocess.run(["pgrep", "-f", f"sleep 63{os.getpid()}"], check=False, capture_output=True).stdout)
    assert dead.workspace.exists() and not dead.alive()
    run(state, repo, "true")
    assert not dead.workspace.exists() and not dead.rules.exists()
    over = load(dead)
    assert over.state == "failed" and over.reason == "skep was killed while it ran"
    assert kinds(dead)[-1] == "sealed"


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_run_that_died_before_its_worker_goes_whole(state: Path, repo: Path) -> None:
    runs = Runs(state / "skep")
    folder = runs.create()
    Log(folder).append("begun", {})
    folder.workspace.mkdir()
    (folder.path / "lock").unlink()
    (folder.path / "lock").touch()
    run(state, repo, "true")
    assert not folder.path.exists() and len(runs.all()) == 1


def test_a_repository_that_is_damaged_is_exit_125_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"d/a": "x\n"})
    tree = git(repo, "rev-parse", "HEAD:d").strip()
    (repo / ".git/objects" / tree[:2] / tree[2:]).unlink()
    (repo / "d/a").write_text("else the baseline would mend it\n")
    with pytest.raises(CannotRun) as error:
        run(state, repo, "true")
    assert error.value.exit_code == 125 and "\n" not in str(error.value)
    assert Runs(state / "skep").all() == []


def test_a_living_run_is_left_alone_by_the_next(state: Path, repo: Path) -> None:
    runs = Runs(state / "skep")
    living = runs.create()
    living.workspace.mkdir()
    run(state, repo, "true")
    assert living.workspace.exists()
    living.lock.release()


def test_a_log_that_cannot_be_written_ends_the_worker_and_the_run_failed(state: Path, repo: Path) -> None:
    class Failing(Plain):
        def worker(
            self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
        ) -> Outcome:
            def spawned(kill: Callable[[], None]) -> None:
                hooks.spawned(kill)
                pipeline._broken(OSError(28, "No space left on device"))  # pyright: ignore[reportPrivateUsage]

            return super().worker(
                folder, place, argv, env, output, Hooks(hooks.evidence, spawned, hooks.started, hooks.event)
            )

    pipeline = with_bounds(state, repo, lambda given: Failing(given), "echo x > f; sleep 600")  # type: ignore[arg-type]
    done, folder = pipeline.go()
    assert done.state == "failed" and done.reason is not None and "no room" in done.reason
    assert done.limit is None, "the wall limit ended it"
    assert kinds(folder)[-1] == "sealed" and not folder.workspace.exists()


def test_results_go_where_the_operator_said(state: Path, repo: Path, tmp_path: Path) -> None:
    done, folder = run(state, repo, "echo x > $SKEP_RESULTS/r", results=str(tmp_path / "res"))
    assert (tmp_path / "res/r").read_text() == "x\n" and done.results == str(tmp_path / "res")
    assert not folder.results.exists()


def test_a_workspace_is_kept_when_asked_for(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "mkdir build; echo x > build/o", keep=True, verify="true")
    assert (folder.workspace / "build/o").exists() and folder.verify.exists()


def test_a_home_folder_that_holds_the_state_can_be_worked_on(tmp_path: Path) -> None:
    home = make_repo(tmp_path / "home", {"f": "x\n"})
    done, _ = run(home / ".state", home, "ls -a .state; test ! -e .state/skep; echo y > f")
    assert done.state == "completed" and done.files_changed == ["f"]
    assert [finding.detail for finding in done.findings] == ["skep's own state"]


def test_the_record_names_the_boundary_before_the_worker_starts(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "true")
    events = {event.kind: event for event in check(folder).events}
    assert events["starting"].data["files"].keys() == {"boundary.txt"}
    assert events["policy"].data["files"].keys() == {"policy.json"}
    assert events["starting"].seq < events["started"].seq


def test_a_record_of_a_run_can_be_read_back_or_is_one_line(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "true")
    good = json.loads(folder.record.read_text())
    for bad in (
        "",
        "{",
        "[]",
        "null",
        json.dumps({**good, "state": "sideways"}),
        json.dumps({**good, "id": "1m8n00000"}),
        "[" * 10_000,
    ):
        folder.record.write_text(bad)
        with pytest.raises(SkepError) as error:
            load(folder)
        assert "\n" not in str(error.value)
    folder.record.unlink()
    folder.record.symlink_to("/etc/passwd")
    with pytest.raises(SkepError):
        load(folder)


def test_a_record_of_requests_ends_where_it_could_no_longer_be_read(
    state: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep_cli.evidence.requests.MAX_DECISIONS", 3)
    refused: list[int] = []

    class Asking(Plain):
        def worker(
            self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
        ) -> Outcome:
            done = super().worker(folder, place, argv, env, output, hooks)
            for number in range(5):
                try:
                    hooks.event(Decision(0.0, f"{number}.example.com", 443, "connect", Verdict(True, "allowed")))
                except OSError as error:
                    refused.append(error.errno or 0)
            return done

    done, folder = with_bounds(state, repo, lambda given: Asking(given)).go()  # type: ignore[arg-type]
    assert done.state == "completed" and refused == [errno.EFBIG] * 3
    assert [kind for kind in kinds(folder) if "egress" in kind] == ["egress", "egress", "egress-full"]
