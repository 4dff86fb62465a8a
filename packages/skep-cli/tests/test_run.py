"""`skep run` as it is typed: what is refused in one line, and what scripts get. In workspace mode, so no sandbox is
needed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from .stage import PLAIN, document, git, skep
from .test_interrupts import Started

MEND = "sh -c 'sed -i s/a.-.b/a+b/ calc.py'"
HERE = ("--execution-mode", "workspace")


def refused(done: subprocess.CompletedProcess[str], code: int, *says: str) -> None:
    """One line on stderr, nothing on stdout."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("skep: execution mode workspace")]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout == ""
    for text in says:
        assert text in lines[0]


def test_scripts_get_a_document_on_the_last_line_and_the_workers_output_elsewhere(state: Path, repo: Path) -> None:
    worker = "sh -c 'echo said; sed -i s/a.-.b/a+b/ calc.py'"
    done = skep(state, "run", str(repo), "mend it", "--worker", worker, "--verify", "sh check.sh", "--json", *HERE)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "said" in done.stderr
    told = document(done)
    assert (told["state"], told["verification"]["outcome"], told["files_changed"]) == (
        "completed",
        "passed",
        ["calc.py"],
    )
    assert "a - b" in (repo / "calc.py").read_text() and git(repo, "status", "--porcelain") == ""


def test_people_see_the_output_on_stdout_and_progress_on_stderr(state: Path, repo: Path) -> None:
    done = skep(state, "run", str(repo), "mend it", "--worker", "echo said", *HERE)
    assert done.stdout == "said\n" and "skep: run" in done.stderr and "\x1b" not in done.stderr
    assert "nothing is enforced" in done.stderr


def test_quiet_is_quiet_and_still_warns(state: Path, repo: Path) -> None:
    done = skep(state, "run", str(repo), "mend it", "--worker", "echo said", "--quiet", *HERE)
    assert done.stdout == "" and done.stderr.splitlines() == [
        "skep: execution mode workspace: nothing is enforced, the worker can do whatever you can"
    ]


@pytest.mark.parametrize(
    ("worker", "more", "code"),
    [
        ("true", (), 0),
        ("true", ("--verify", "true"), 0),
        ("true", ("--verify", "false"), 1),
        ("true", ("--verify", "no-such-tool"), 1),
        ("sh -c 'exit 3'", (), 1),
        ("sleep 60", ("--wall", "500ms"), 124),
    ],
)
def test_the_exit_status_is_what_the_design_fixes(
    state: Path, repo: Path, worker: str, more: tuple[str, ...], code: int
) -> None:
    assert skep(state, "run", str(repo), "x", "--worker", worker, *more, *HERE).returncode == code


def test_the_report_file_has_the_same_document(state: Path, repo: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = skep(state, "run", str(repo), "x", "--worker", "true", "--json", "--report", str(report), *HERE)
    assert json.loads(report.read_text()) == document(done)


@pytest.mark.parametrize("task", ["", "  \n"])
def test_an_empty_task_is_refused(state: Path, repo: Path, task: str) -> None:
    refused(skep(state, "run", str(repo), task, "--worker", "touch ran", *HERE), 2, "task is empty")


@pytest.mark.parametrize(
    ("length", "more", "refuses"), [(131_061, (), False), (131_062, (), True), (131_000, ("x{task}" * 2,), True)]
)
def test_a_task_that_no_program_can_be_given_is_refused(
    state: Path, repo: Path, length: int, more: tuple[str, ...], refuses: bool
) -> None:
    done = skep(state, "run", str(repo), "x" * length, "--worker", " ".join(("true", *more)), "--json", *HERE)
    if refuses:
        refused(done, 2, "the task is too long", "write it to a file")
    else:
        assert document(done)["state"] == "completed"


def test_scripts_too_are_told_on_stderr_why_a_run_failed(state: Path, repo: Path) -> None:
    (repo / "agent").write_text("no program\n")
    done = skep(state, "run", str(repo), "x", "--worker", "./agent", "--json", *HERE)
    assert done.returncode == 1 and "the worker could not be executed: ./agent: Permission denied" in done.stderr


def test_a_repo_that_is_absent_a_file_or_everything_is_refused(state: Path, repo: Path) -> None:
    for what, says in ((repo / "absent", "no such folder"), (repo / "calc.py", "not a folder"), ("/", "REPO is /")):
        refused(skep(state, "run", str(what), "x", "--worker", "true", *HERE), 2, says)


def test_no_worker_lists_the_agents_on_path_and_shows_the_flag(state: Path, repo: Path, tmp_path: Path) -> None:
    """On a PATH of git alone: whoever runs this may have agents of their own."""
    bare, folder = tmp_path / "bare", tmp_path / "bin"
    bare.mkdir()
    (bare / "git").symlink_to(shutil.which("git") or "git")
    done = skep(state, "run", str(repo), "x", env={"PATH": str(bare)})
    refused(done, 2, "--worker 'CMD {task}'", "none of aider, claude, codex")
    folder.mkdir()
    for name in ("codex", "goose"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    done = skep(state, "run", str(repo), "x", env={"PATH": f"{folder}:{bare}"})
    refused(done, 2, "on PATH: codex, goose", "--worker codex,")


@pytest.mark.parametrize(
    ("worker", "code", "says"),
    [
        ("no-such-worker {task}", 127, "'no-such-worker' on PATH; the presets are aider, claude, codex"),
        ("gose", 127, "'gose' on PATH; did you mean --worker goose?"),
        ("/no/such/worker", 127, "/no/such/worker is no program"),
        ("'open", 2, "no closing quotation"),
        ("  ", 2, "--worker is empty"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(state: Path, repo: Path, worker: str, code: int, says: str) -> None:
    refused(skep(state, "run", str(repo), "x", "--worker", worker, *HERE), code, says)
    assert not (state / "skep/runs").exists() or not os.listdir(state / "skep/runs")


@pytest.mark.parametrize(
    ("more", "told"), [(["no-such-tool"], True), (["true"], False), (["no-such-tool", "--setup", "true"], False)]
)
def test_a_verification_whose_program_is_not_here_is_told_before_the_run(
    state: Path, repo: Path, more: list[str], told: bool
) -> None:
    done = skep(state, "run", str(repo), "x", "--worker", "true", *HERE, "--verify", *more)
    before = done.stderr.partition("worker started")[0]
    assert ("the patch will not be verified: there is no program 'no-such-tool' on PATH" in before) is told, before


def test_an_unknown_mode_is_a_usage_error_and_runs_nothing(state: Path, repo: Path) -> None:
    for option, value in (("--execution-mode", "sandbx"), ("--workspace", "overlaid")):
        done = skep(state, "run", str(repo), "x", "--worker", "touch ran", option, value)
        assert done.returncode == 2 and value in done.stderr
    done = skep(state, "run", str(repo), "x", "--worker", "touch ran", "--workspace", "overlay", *HERE)
    assert done.returncode == 2 and "--execution-mode workspace has none" in done.stderr
    assert not (state / "skep").exists()


def test_a_bad_policy_is_refused_with_its_place(state: Path, repo: Path, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text("[network]\nallowed = []\n")
    done = skep(state, "run", str(repo), "x", "--worker", "true", "--policy", str(policy), *HERE)
    refused(done, 2, "p.toml:2")
    refused(skep(state, "run", str(repo), "x", "--worker", "true", "--allow", "http://x/", *HERE), 2, "http://x/")


def test_results_inside_the_tree_or_in_a_file_are_refused(state: Path, repo: Path, tmp_path: Path) -> None:
    done = skep(state, "run", str(repo), "x", "--worker", "true", "--results", str(repo / "out"), *HERE)
    refused(done, 2, "inside REPO")
    (tmp_path / "file").write_text("mine")
    done = skep(state, "run", str(repo), "x", "--worker", "true", "--results", str(tmp_path / "file"), *HERE)
    refused(done, 2, "not a folder")


@pytest.mark.parametrize("how", ["file", "read-only", "broken link"])
def test_a_state_folder_that_cannot_be_used_is_one_line_before_the_worker(state: Path, repo: Path, how: str) -> None:
    inner = state / "inner"
    if how == "file":
        inner.write_text("mine")
    elif how == "broken link":
        inner.symlink_to("/proc/nowhere/x")
    elif os.geteuid() == 0:
        inner = Path("/proc/nowhere")
    else:
        inner.mkdir(mode=0o500)
    done = skep(
        state, "run", str(repo), "x", "--worker", f"touch {state}/ran", *HERE, env={"XDG_STATE_HOME": str(inner)}
    )
    refused(done, 125, "XDG_STATE_HOME")
    assert not (state / "ran").exists() and (how != "file" or inner.read_text() == "mine")


def on_small_disk(
    state: Path, repo: Path, size: str, *args: str, listed: str = "ls"
) -> subprocess.CompletedProcess[str]:
    """skep with its state on a tmpfs of that size; what it left among the runs is listed on stderr."""
    disk = state / "disk"
    disk.mkdir(exist_ok=True)
    inner = (
        f'mount -t tmpfs -o size={size} none "$0" && {{ "$@"; code=$?; cd "$0/skep/runs"; {listed} >&2; exit $code; }}'
    )
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    words = [*unshare, "sh", "-c", inner, str(disk), sys.executable, "-m", "skep_cli", "run", str(repo), "x", *args]
    env = {"PATH": os.environ["PATH"], "HOME": str(state), "XDG_STATE_HOME": str(disk), **PLAIN}
    return subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


needs_unshare = pytest.mark.skipif(
    subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "true"], capture_output=True, check=False
    ).returncode
    != 0
    and not os.environ.get("SKEP_SANDBOX_MUST_WORK"),
    reason="no mount namespaces here",
)


@needs_unshare
@pytest.mark.parametrize("size", ["16k", "32k", "48k", "64k", "96k", "128k"])
def test_a_full_disk_before_the_worker_is_one_line_and_leaves_nothing(state: Path, repo: Path, size: str) -> None:
    (repo / "data").write_bytes(os.urandom(200_000))
    done = on_small_disk(state, repo, size, "--worker", f"touch {state}/ran", "--quiet", *HERE)
    refused(done, 125, "no room in the state folder")
    assert not (state / "ran").exists()


@needs_unshare
def test_a_disk_the_worker_fills_ends_in_a_failed_run_with_what_there_is(state: Path, repo: Path) -> None:
    worker = "sh -c 'echo x > f; head -c 100000000 /dev/zero > fill; cat fill; exec sleep 60'"
    done = on_small_disk(state, repo, "4m", "--worker", worker, "--json", "--quiet", *HERE)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    told = document(done)
    assert told["state"] == "failed"
    lines = [line for line in done.stderr.splitlines() if "nothing is enforced" not in line]
    assert len(lines) == 2 and "no room in the state folder" in lines[0] and lines[1] == told["id"], done.stderr


@needs_unshare
def test_a_disk_without_room_for_the_patch_is_told_and_keeps_what_the_worker_wrote(state: Path, repo: Path) -> None:
    """Git has no room for the pack, and a file of its errors would have none either."""
    done = on_small_disk(
        state, repo, "20m", "--worker", "sh -c 'head -c 12000000 /dev/urandom > f'", "--json", "--quiet", *HERE,
        listed="find . -name f -o -name run.json -o -name 'tmp_*'",
    )  # fmt: skip
    assert done.returncode == 1 and document(done)["state"] == "failed"
    assert "no room in the state folder" in done.stderr and "exit status" not in done.stderr, done.stderr
    run = document(done)["id"]
    assert f"what the worker wrote is kept in {state}/disk/skep/runs/{run}/workspace" in done.stderr, done.stderr
    assert sorted(done.stderr.splitlines()[-2:]) == [f"./{run}/run.json", f"./{run}/workspace/f"], done.stderr


def test_stopping_skep_stops_the_worker_and_still_takes_the_patch(state: Path, repo: Path) -> None:
    # A loop: a shell that is just starting a long `sleep` when the signal comes waits for the end of that.
    started = Started(state, repo, "echo x > f; echo up; while :; do sleep 0.1; done", "workspace")
    started.until("up\n")
    started.send(signal.SIGINT)
    code, told = started.end()
    assert told is not None and code == 1 and told["state"] == "failed" and told["files_changed"] == ["f"]


def test_a_name_that_is_no_text_goes_through_json(state: Path, repo: Path) -> None:
    script = "import os; open(os.fsdecode(b'\\xff'), 'w').write('x')"
    done = skep(state, "run", str(repo), "x", "--worker", f'{shutil.which("python3")} -c "{script}"', "--json", *HERE)
    assert done.returncode == 0, done.stderr
    assert document(done)["files_changed"] == [os.fsdecode(b"\xff")]


def test_every_file_of_a_run_is_the_owners_alone(state: Path, repo: Path) -> None:
    told = document(skep(state, "run", str(repo), "x", "--worker", MEND, "--verify", "true", "--json", *HERE))
    for path in [state / "skep", *(state / "skep").rglob("*")]:
        if "results" not in path.parts and "git" not in path.parts:
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
    assert Path(told["audit"]).is_dir()


def test_a_report_that_cannot_be_written_is_told_before_anything_runs(state: Path, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "bashrc")  # an earlier worker may have left it
    for path, says in ((tmp_path / "none/r.json", "No such file"), (tmp_path / "link.json", "symbolic links")):
        worker = f"touch {tmp_path}/ran"
        done = skep(state, "run", str(repo), "x", "--worker", worker, "--quiet", "--report", str(path), *HERE)
        refused(done, 125, "--report", says)
    assert not (tmp_path / "ran").exists() and not (tmp_path / "bashrc").exists()
    assert not (state / "skep/runs").exists()


def test_an_old_report_is_not_left_for_one_of_a_launch_that_failed(state: Path, repo: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"exit_code": 0}')
    done = skep(state, "run", str(repo), "x", "--worker", "no-such-worker", "--report", str(report), *HERE)
    assert done.returncode == 127 and not report.exists()
    report.write_text('{"exit_code": 0}')
    done = skep(state, "exec", "--write", "/no/such/folder", "--report", str(report), "--", "true")
    assert done.returncode == 125 and not report.exists()
    report.write_text("old, and longer than what comes" * 200)
    skep(state, "run", str(repo), "x", "--worker", "true", "--report", str(report), *HERE)
    assert json.loads(report.read_text())["state"] == "completed"


def test_a_state_folder_inside_the_tree_is_refused_with_the_remedy(state: Path, repo: Path) -> None:
    env = {"XDG_STATE_HOME": str(repo / ".state")}
    done = skep(state, "run", str(repo), "x", "--worker", f"touch {state}/ran", "--quiet", *HERE, env=env)
    refused(done, 125, f"is inside {repo}", "set XDG_STATE_HOME to a folder outside")
    assert not (repo / ".state").exists() and not (state / "ran").exists()


@pytest.mark.parametrize(("worker", "told"), [("true", True), ("echo {task}", False), ("sh -c 'echo {task}'", False)])
def test_a_worker_that_is_not_given_its_task_as_a_word_is_told_of(
    state: Path, repo: Path, worker: str, told: bool
) -> None:
    done = skep(state, "run", str(repo), "x", "--worker", worker, *HERE)
    assert done.returncode == 0 and ("SKEP_TASK" in done.stderr) is told


@pytest.mark.parametrize("value", ["9" * 5000, "9" * 19, "1e3", "", "-1", "0", "\u0663", "0x10", "1_000"])
@pytest.mark.parametrize("command", ["run", "exec"])
def test_a_number_that_cannot_be_used_is_a_usage_error(state: Path, repo: Path, command: str, value: str) -> None:
    words = ("run", str(repo), "x", "--worker", "touch ran") if command == "run" else ("exec",)
    done = skep(state, *words, "--processes", value, *(() if command == "run" else ("--", "touch", "ran")))
    assert done.returncode == 2 and "Traceback" not in done.stderr and len(done.stderr) < 500, done.stderr
    assert not (state / "home/ran").exists()


@pytest.mark.parametrize(
    "words",
    [("batch", "t.jsonl"), ("policy", "suggest"), ("exec", "--ask", "--", "true"), ("run", ".", "x", "--observe")],
)
def test_what_does_not_exist_yet_is_a_usage_error(state: Path, words: tuple[str, ...]) -> None:
    done = skep(state, *words)
    assert done.returncode == 2 and "no such" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_told(state: Path, flag: str) -> None:
    assert skep(state, flag).stdout.startswith("skep, version ")


def test_a_shell_is_offered_runs_workers_and_toolchains(state: Path, repo: Path) -> None:
    def asked(line: str) -> dict[str, str]:
        return {"_SKEP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}

    def offered(line: str) -> list[str]:
        return [item.partition(",")[2] for item in skep(state, env=asked(line)).stdout.splitlines()]

    assert offered("skep review ") == [""]
    done = document(skep(state, "run", str(repo), "x", "--worker", "true", "--json", *HERE))
    for line in ("skep review ", "skep approve ", "skep deny ", "skep audit verify "):
        assert offered(line) == ["last", done["id"]]
    assert offered(f"skep review {done['id'][:4]}") == [done["id"]] and offered("skep review z") == [""]
    assert offered("skep run . x --worker co") == ["codex"] and offered("skep exec --preset ge") == ["gemini"]
    assert offered("skep workers go") == ["goose"]
    assert skep(state, env=asked("skep policy explain ./")).stdout == "file,./\n"
    assert skep(state, env=asked("skep run ./")).stdout == "dir,./\n"
    fish = skep(state, env={"_SKEP_COMPLETE": "fish_source"}).stdout
    assert 'string split --max 1 ","' in fish  # what is said of a word has commas
    assert offered("skep exec --toolchain ") == ["go", "jvm", "node", "python", "rust"]
