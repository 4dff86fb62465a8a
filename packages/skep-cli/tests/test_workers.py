"""The worker's command, as people type it."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import pytest
from skep_cli.errors import UsageError
from skep_cli.workers import missing, none_configured, split, with_task

from .stage import GIT, document, make_repo, skep


def test_a_command_is_split_as_a_shell_splits_words() -> None:
    assert split("codex exec '{task}' --x=\"a b\" c\\ d", "--worker") == ["codex", "exec", "{task}", "--x=a b", "c d"]


@pytest.mark.parametrize("text", ["", "  ", "'open", '"', "a\0b"])
def test_what_is_no_command_is_a_usage_error_of_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        split(text, "--worker")
    assert error.value.exit_code == 2 and "--worker" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("echo $HOME; ls", "$HOME;"),
        ("cd sub && make", "&&"),
        ("make|tee log", "make|tee"),
        ("make 2>&1", "2>&1"),
        ("make > log", ">"),
        ("make >log", ">log"),
        ("serve &", "&"),
        ("serve&", "serve&"),
        ("~/bin/agent {task}", "~/bin/agent"),
        ("tool ${HOME}/x", "${HOME}/x"),
        ("tool $(date)", "$(date)"),
        ("tool `date`", "`date`"),
    ],
)
def test_what_only_a_shell_would_act_on_is_named_with_what_to_write(text: str, word: str) -> None:
    with pytest.raises(UsageError) as error:
        split(text, "--worker")
    assert f"no shell reads {word!r}, so it would be an argument as it stands; write sh -c '...'" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "sh -c 'echo $HOME; ls | wc > n &'",
        'sh -c "cd sub && make; echo `date` $HOME"',
        "pip install click>=8",
        "grep -c foo$ \\$HOME a\\;b",
        "fetch --url 'http://example.com/?a=1&b=2' x&y a~/b",
    ],
)
def test_what_is_quoted_or_part_of_a_word_stays_as_it_is(text: str) -> None:
    assert split(text, "--worker") == shlex.split(text)


def test_the_task_is_put_inside_words_and_never_split() -> None:
    assert with_task(["a", "{task}", "--t={task}{task}", "{other}"], "x 'y' {task}") == [
        *("a", "x 'y' {task}", "--t=x 'y' {task}x 'y' {task}", "{other}")
    ]


def test_what_is_not_there_is_named_and_what_may_be_in_the_workspace_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    environ = {"PATH": str(tmp_path)}
    assert "'tool'" in (missing(["tool"], environ) or "") and str(tmp_path / "tool") in (
        missing([str(tmp_path / "tool")], environ) or ""
    )
    (tmp_path / "tool").chmod(0o755)
    assert missing(["tool"], environ) is None and missing([str(tmp_path / "tool")], environ) is None
    assert missing(["./made-by-the-worker"], environ) is None


def test_no_worker_says_what_there_is_and_what_to_type() -> None:
    assert "none of claude, codex" in str(none_configured({"claude": False, "codex": False}))
    assert "--worker gemini" in str(none_configured({"claude": False, "gemini": True}))


def test_every_preset_is_given_the_task_and_grants_what_it_says(state: Path) -> None:
    told = {one["name"]: one for one in json.loads(skep(state, "workers", "--json").stdout)}
    assert set(told) == {"aider", "claude", "codex", "gemini", "goose", "opencode"}
    for name, one in told.items():
        assert one["command"][0] == name and "{task}" in one["command"] and one["allow"] and one["source"] == "built-in"
        assert not any("*" in host for host in one["allow"])
    assert {name for name, one in told.items() if one["untried"]} == {"goose"}
    assert "untried   written from its documents" in skep(state, "workers", "goose").stdout
    assert "not found" in skep(state, "workers", env={"PATH": str(Path(GIT).parent)}).stdout


def test_a_preset_of_the_users_own_has_the_state_it_keeps_and_the_hosts_copy_stays(state: Path, repo: Path) -> None:
    home = state / "home"
    own = home / ".config/skep/workers"
    own.mkdir(parents=True)
    script = (
        "cat $MINE/deep/login $MINE/deep/d/x; echo changed > $MINE/deep/login; test ! -e $MINE/deep/history;"
        ': > .own-notes; echo "$MINE_SET" > out'
    )
    (own / "mine.toml").write_text(
        '[preset]\nprograms = ["sh"]\nignore = ["/.own*"]\n'
        '[preset.state."~/.mine"]\nvariable = "MINE"\ninside = "deep"\nkeep = ["login", "d"]\n'
        f'[worker]\ncommand = ["sh", "-ec", {json.dumps(script)}, "{{task}}"]\n[env.set]\nMINE_SET = "set"\n'
    )
    (home / ".mine/d").mkdir(parents=True)
    for name in ("login", "history", "d/x"):
        (home / ".mine" / name).write_text("secret\n")
    before = {path: path.read_bytes() for path in (home / ".mine").rglob("*") if path.is_file()}
    for mode in ("workspace", "sandbox"):
        done = skep(state, "run", str(repo), "t", "--worker", "mine", "--json", "--execution-mode", mode)
        if mode == "sandbox" and done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
            pytest.skip(done.stderr.strip())
        told = document(done)
        assert told["files_changed"] == ["out"], done.stderr
        assert Path(told["audit"], "worker.log").read_text() == "secret\nsecret\n"
        assert not Path(told["audit"], "agent").exists()
        assert {path: path.read_bytes() for path in (home / ".mine").rglob("*") if path.is_file()} == before


def test_in_place_too_an_agent_finds_a_copy_of_its_state_and_only_when_asked_for(state: Path, repo: Path) -> None:
    home = state / "home"
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/auth.json").write_text("secret\n")
    (home / ".config/skep").mkdir(parents=True)
    (home / ".config/skep/config.toml").write_text('[worker]\npreset = "codex"\n')
    script = 'cat "$CODEX_HOME/auth.json"; echo changed > "$CODEX_HOME/auth.json"; echo ${OPENAI_API_KEY-unset}'
    env = {"OPENAI_API_KEY": "k"}
    done = skep(state, "exec", "--preset", "codex", "--", "sh", "-c", script, env=env, cwd=repo)
    if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.stdout == "secret\nk\n", done.stderr
    assert (home / ".codex/auth.json").read_text() == "secret\n" and not list((state / "skep/exec").iterdir())
    plain = skep(state, "exec", "--", "sh", "-c", "echo ${CODEX_HOME-none} ${OPENAI_API_KEY-unset}", env=env, cwd=repo)
    assert plain.stdout == "none unset\n", plain.stderr
    used = skep(state, "run", str(repo), "t", "--json", env={"PATH": "/usr/bin:/bin"})
    assert used.returncode == 127 and "'codex'" in used.stderr


@pytest.mark.parametrize("moved", [False, True])
def test_a_login_that_is_renewed_inside_is_told_of_and_never_taken_back(state: Path, repo: Path, moved: bool) -> None:
    home = state / "home"
    own = home / ".config/skep/workers"
    own.mkdir(parents=True)
    folder = state / "elsewhere" if moved else home / ".mine"
    beside = (folder if moved else home) / ".mine.json"
    folder.mkdir()
    (folder / "login").write_text("old\n")
    beside.write_text("first start\n")
    (own / "mine.toml").write_text(
        '[preset]\nprograms = ["sh"]\n[preset.state."~/.mine"]\nvariable = "MINE"\nkeep = ["login"]\n'
        'beside = [".mine.json"]\nlogin = ["login"]\n[worker]\ncommand = ["sh", "-ec", "{task}"]\n'
    )
    env = {"MINE": str(folder)} if moved else {}
    reads = "cat $MINE/login $MINE/.mine.json"
    writes = f"{reads}; echo new > $MINE/login; echo new > $MINE/.mine.json"

    def through(words: tuple[str, ...], script: str) -> tuple[str, str]:
        if words[0] == "exec":
            done = skep(state, *words, "--", "sh", "-ec", script, env=env, cwd=repo)
            if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
                pytest.skip(done.stderr.strip())
            return done.stdout, done.stderr
        done = skep(state, *words, script, "--json", "--worker", "mine", env=env)
        told = document(done)
        findings = [f"{found['path']}: {found['detail']}" for found in told["findings"] if found["kind"] == "login"]
        return Path(told["audit"], "worker.log").read_text(), "".join(findings)

    for words in (("exec", "--preset", "mine"), ("run", str(repo))):
        said, told = through(words, reads)
        assert said == "old\nfirst start\n" and "renewed" not in told
        for script in (writes, f"{reads}; rm $MINE/login; mkfifo $MINE/login"):
            said, told = through(words, script)
            assert said == "old\nfirst start\n" and f"{folder / 'login'}: the agent renewed its login" in told
        assert (folder / "login").read_text() == "old\n" and beside.read_text() == "first start\n"


def test_an_agents_endpoint_that_is_not_allowed_is_told_of_before_it_tries_for_minutes(state: Path, repo: Path) -> None:
    own = state / "home/.config/skep/workers"
    own.mkdir(parents=True)
    (own / "mine.toml").write_text(
        '[preset]\nprograms = ["sh"]\n[worker]\ncommand = ["sh", "-c", ":", "{task}"]\n'
        '[env]\npass = ["MINE_*"]\n[network]\nallow = ["api.example.com"]\n'
    )
    env = {
        "MINE_URL": "http://localhost:8123/v1",
        "MINE_OTHER": "https://api.example.com/v1",
        "MINE_WORD": "localhost:1",
        "MINE_BAD": "http://[",
        "NOT_MINE": "http://localhost:1/",
    }
    exec_ = ("exec", "--preset", "mine")
    run = ("run", str(repo), "t", "--worker", "mine")
    for words, rest in ((run, ()), (exec_, ("--", "true"))):
        done = skep(state, *words, *rest, env=env, cwd=repo)
        if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
            pytest.skip(done.stderr.strip())
        told = [line for line in done.stderr.splitlines() if "leads to" in line]
        assert len(told) == 1 and told[0].endswith(
            "MINE_URL leads to localhost:8123, which is not in the allowlist; --allow localhost:8123"
        )
        done = skep(state, *words, "--allow", "localhost:8123", *rest, env=env, cwd=repo)
        assert done.returncode == 0 and "leads to" not in done.stderr
        done = skep(state, *words, "--env", "MINE_URL=https://api.example.com/", *rest, env=env, cwd=repo)
        assert done.returncode == 0 and "leads to" not in done.stderr
        done = skep(state, *words, "--deny", "localhost:8123", *rest, env=env, cwd=repo)
        assert "MINE_URL leads to localhost:8123, which localhost:8123 denies" in done.stderr


def test_bytecode_is_no_part_of_a_patch_unless_it_was_committed(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "bare", {"a.py": "x = 1\n", "kept/__pycache__/old.pyc": "old"})
    script = "mkdir __pycache__; echo new > __pycache__/a.pyc; echo new > kept/__pycache__/old.pyc; echo new > b.py"
    told = document(skep(state, "run", str(repo), "t", "--worker", f"sh -c '{script}'", "--json"))
    assert told["files_changed"] == ["b.py", "kept/__pycache__/old.pyc"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/tmp is the worker's own on Linux")
def test_a_run_is_told_that_what_it_names_below_tmp_is_out_of_sight(state: Path) -> None:
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".skep-test-") as folder:
        repo = make_repo(Path(folder) / "repo", {"a": "1"})
        with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".sh") as script:
            done = skep(state, "run", str(repo), "t", "--worker", f"sh {script.name}", "--verify", f"sh {script.name}")
            if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
                pytest.skip(done.stderr.strip())
            told = [line for line in done.stderr.splitlines() if "is not in the sandbox" in line]
            assert len(told) == 2 and all(f"--write {script.name}" in line for line in told), done.stderr
            done = skep(state, "run", str(repo), "t", "--worker", "sh -c :")
            assert "is not in the sandbox" not in done.stderr


def test_an_unknown_preset_lists_those_there_are(state: Path, repo: Path) -> None:
    done = skep(state, "run", str(repo), "t", "--preset", "nope")
    assert done.returncode == 2 and "aider, claude, codex" in done.stderr and len(done.stderr.splitlines()) == 1
    both = skep(state, "run", str(repo), "t", "--worker", "codex", "--preset", "claude")
    assert both.returncode == 2 and "two presets" in both.stderr


@pytest.mark.parametrize("text", ["true && false", "cd sub && pytest", "pytest | tee log", "a ; b", "make > log"])
def test_what_only_a_shell_would_understand_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(UsageError, match="sh -c"):
        split(text, "--verify")
    assert split(f"sh -c '{text}'", "--verify") == ["sh", "-c", text]
