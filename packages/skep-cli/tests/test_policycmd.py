"""`skep policy explain` says what it was asked about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from skep_cli import policies
from skep_cli.errors import UsageError
from skep_cli.flags import Flags
from skep_cli.policycmd import boundary_of, command, kind_of, with_own_folders
from skep_policy.explain import explain_path
from skep_policy.facts import Facts


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("example.com", "host"),
        ("example.com:443", "host"),
        ("[::1]:80", "host"),
        ("notes.md", "path"),
        ("notes.md:443", "host"),
        ("src", "path"),
        ("absent", "host"),
        ("absent/file", "path"),
        ("./absent", "path"),
        (".env", "path"),
        ("..", "path"),
        ("~", "path"),
        ("~/.ssh", "path"),
        ("/etc", "path"),
        ("dangling", "path"),
    ],
)
def test_a_target_is_a_path_by_its_looks_or_when_it_stands_here(tmp_path: Path, target: str, kind: str) -> None:
    (tmp_path / "notes.md").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    assert kind_of(target, str(tmp_path)) == kind


def test_a_url_is_refused_with_the_form_that_is_wanted() -> None:
    with pytest.raises(UsageError, match="write its host"):
        kind_of("https://example.com/", "/")


def test_the_answer_says_which_it_was_taken_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    host = CliRunner().invoke(command, ["explain", "notes.md", "--allow", "notes.md"])
    assert host.exit_code == 0 and host.output.startswith("host notes.md:443: allowed")
    (tmp_path / "notes.md").touch()
    path = CliRunner().invoke(command, ["explain", "notes.md"])
    assert path.exit_code == 0 and path.output.startswith(f"path {tmp_path}/notes.md: allowed")
    denied = CliRunner().invoke(command, ["explain", "notes.md:443"]).output
    assert denied == "host notes.md:443: denied: not in the allowlist; --allow notes.md lists it\n"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('[worker]\npreset = "codx"\n', "2: worker.preset: no preset 'codx'; did you mean codex? known are aider"),
        ('[worker]\ntoolchains = ["npm"]\n', "2: worker.toolchains: no toolchain 'npm'; known are go, jvm, node"),
        ('[setup]\ntoolchains = ["npm"]\n', "2: setup.toolchains: no toolchain 'npm'; known are go, jvm, node"),
        ('[worker]\npreset = "codex"\n[setup]\ntoolchains = ["python"]\n', None),
    ],
)
def test_a_file_that_names_what_is_not_there_is_told_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, problem: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.toml").write_text(written)
    done = CliRunner().invoke(command, ["check", "mine.toml"])
    assert done.exit_code == (2 if problem else 0)
    assert done.output.startswith(f"skep: mine.toml:{problem}" if problem else "mine.toml can be used")
    (tmp_path / "config/skep").mkdir(parents=True)
    (tmp_path / "mine.toml").rename(tmp_path / "config/skep/config.toml")
    assert CliRunner().invoke(command, ["check"]).exit_code == (2 if problem else 0)


@pytest.mark.parametrize(("list_of", "path"), [("write", "/proc"), ("hide", "/usr")])
def test_a_file_that_no_boundary_comes_of_is_told_by_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, list_of: str, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "mine.toml").write_text(f'[filesystem]\n{list_of} = ["{path}"]\n')
    done = CliRunner().invoke(command, ["check", "mine.toml"])
    assert done.exit_code == 125 and f"filesystem.{list_of}" in done.output, done.output
    (tmp_path / "mine.toml").write_text(f'[filesystem]\n{list_of} = ["{tmp_path}/x"]\n')
    (tmp_path / "x").mkdir()
    assert CliRunner().invoke(command, ["check", "mine.toml"]).output == "mine.toml can be used\n"


@pytest.mark.sandbox
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="these folders are the worker's own on Linux")
def test_what_stands_in_a_folder_of_the_workers_own_is_told_to_be_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tempfile.TemporaryDirectory(dir=Path.home(), prefix=".skep-test-") as home,
        tempfile.NamedTemporaryFile(dir="/tmp") as there,
        tempfile.NamedTemporaryFile(dir=Path.home(), prefix=".skep-test-") as elsewhere,
    ):
        monkeypatch.chdir(home)
        monkeypatch.setenv("XDG_STATE_HOME", f"{home}/state")

        def explained(*words: str) -> str:
            return CliRunner().invoke(command, ["explain", *words]).output

        def told(*words: str) -> tuple[int, str]:
            argv = [sys.executable, "-m", "skep_cli", "exec", *words]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            return done.returncode, done.stderr

        assert "denied: hidden: the worker has a /tmp of its own" in explained(there.name)
        assert "allowed: write: the worker has a /tmp of its own" in explained("/tmp")
        assert f"path {there.name}: allowed by {there.name}" in explained(there.name, "--write", there.name)
        status, stderr = told("--", "cat", there.name)
        assert status == 1 and f"{there.name} is not in the sandbox" in stderr and f"--write {there.name}" in stderr
        assert told("--write", there.name, "--", "cat", there.name) == (0, "")
        status, stderr = told("--", "sh", "-c", f"cat {elsewhere.name}; exit 3")
        assert (status, stderr) == (3, "")

        program = Path(there.name + "-program")
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
        try:
            status, stderr = told("--", str(program))
            assert status == 127 and "is not in the sandbox" in stderr
            monkeypatch.setenv("PATH", f"/tmp:{os.environ['PATH']}")
            status, stderr = told("--", program.name)
            assert status == 127 and f"{program} is not in the sandbox" in stderr
        finally:
            program.unlink()


TRY = """
import errno, json, os, stat, sys
met = {}
for path in json.load(sys.stdin):
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            os.listdir(path)
        elif stat.S_ISREG(mode) or path.startswith("/proc/"):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        met[path] = "ok"
    except OSError as error:
        met[path] = errno.errorcode[error.errno]
json.dump(met, sys.stdout)
"""


def nodes(top: str, depth: int) -> list[str]:
    """What stands in a folder of this machine, some of it at every depth."""
    try:
        names = sorted(os.listdir(top))[: 120 if depth > 1 else 12]
    except OSError:
        return []
    found: list[str] = []
    for name in names:
        path = f"{top}/{name}"
        found.append(path)
        if depth > 1 and os.path.isdir(path) and not os.path.islink(path) and not name.isdigit():
            found += nodes(path, depth - 1)
    return found


@pytest.mark.sandbox
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the worker has these folders of its own on Linux")
def test_what_is_said_of_every_node_of_the_system_is_what_a_worker_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        tempfile.TemporaryDirectory(dir=Path.home(), prefix=".skep-test-") as home,
        tempfile.NamedTemporaryFile(dir="/tmp") as there,
        tempfile.NamedTemporaryFile(dir="/dev/shm") as shared,
    ):
        monkeypatch.chdir(home)
        monkeypatch.setenv("XDG_STATE_HOME", f"{home}/state")
        Path(home, "link").symlink_to(there.name)
        Path(home, "kernel").symlink_to("/proc/version")
        tops = {"/dev": 2, "/sys": 2, "/run": 2, "/proc": 1, "/proc/sys": 2, "/var/run": 1, "/var/tmp": 1}
        listed = [path for top, depth in tops.items() for path in (top, *nodes(top, depth))]
        listed += [there.name, shared.name, f"{home}/link", f"{home}/kernel", "/proc/self/status", "/proc/mounts"]
        flags, facts = Flags(), Facts.gather()
        effective = policies.effective(flags, facts=facts, project=home)
        boundary = boundary_of(effective, flags, facts, absent_too=True)
        said = {path: with_own_folders(explain_path(boundary, path), boundary, path) for path in listed}

        def tried(*argv: str) -> dict[str, str]:
            return json.loads(subprocess.run(argv, input=json.dumps(listed), capture_output=True, text=True).stdout)

        outside = tried(sys.executable, "-c", TRY)
        inside = tried(sys.executable, "-m", "skep_cli", "exec", "--", sys.executable, "-c", TRY)
        wrong: list[str] = []
        for path, told in said.items():
            process = path.split("/")[2:3] if path.startswith("/proc/") else [""]
            if not os.path.lexists(path) or process[0].isdigit():  # gone meanwhile; another process of that number
                continue
            kernels = path.startswith("/proc/") and told.allow  # shows there what it likes to a process
            refused = outside[path] if outside[path] != "ok" else "neither"
            if not kernels and told.allow is not (inside[path] == "ok") and inside[path] != refused:
                wrong.append(f"{told} but {inside[path]}")
        assert wrong == []
        assert {told.allow for told in said.values()} == {True, False}
        elsewhere = explain_path(boundary, f"/proc/{os.getppid()}")
        assert not with_own_folders(elsewhere, boundary, elsewhere.target).allow
        assert (
            "allowed: write: the worker has a /dev/shm" in CliRunner().invoke(command, ["explain", "/dev/shm"]).output
        )
        assert "denied: hidden: the worker has a /tmp" in CliRunner().invoke(command, ["explain", "link"]).output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every folder")
def test_what_lies_in_a_folder_nobody_here_may_search_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    told = CliRunner().invoke(command, ["explain", "./closed/x"])
    assert told.exit_code == 1 and f"path {closed}/x: denied: hidden: {closed} may not be searched" in told.output
    closed.chmod(0o700)
    assert CliRunner().invoke(command, ["explain", "./closed/x"]).exit_code == 0


def test_a_decision_is_told_in_words_and_kept_as_a_word_for_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def told(*words: str) -> str:
        return CliRunner().invoke(command, ["explain", *words]).output

    assert told("x.example", "--allow", "x.example") == "host x.example:443: allowed by x.example (command line)\n"
    assert told("127.1").startswith("host 127.1: denied: not a host that can be asked for; write a name")
    assert told("x.example", "--deny", "x.example").endswith("(command line): a deny rule names it\n")
    assert json.loads(told("x.example", "--json"))["reason"] == "not-listed"
