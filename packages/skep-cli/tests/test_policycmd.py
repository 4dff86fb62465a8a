"""`skep policy explain` says what it was asked about."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from skep_cli.errors import UsageError
from skep_cli.policycmd import command, kind_of


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
    assert denied == "host notes.md:443: denied: not-listed; --allow notes.md lists it\n"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('[worker]\npreset = "codx"\n', "worker.preset: no preset 'codx'; did you mean codex? known are aider"),
        ('[worker]\ntoolchains = ["npm"]\n', "worker.toolchains: no toolchain 'npm'; known are go, jvm, node"),
        ('[setup]\ntoolchains = ["npm"]\n', "setup.toolchains: no toolchain 'npm'; known are go, jvm, node"),
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
    assert done.output.startswith(f"skep: mine.toml: {problem}" if problem else "mine.toml can be used")
    (tmp_path / "config/skep").mkdir(parents=True)
    (tmp_path / "mine.toml").rename(tmp_path / "config/skep/config.toml")
    assert CliRunner().invoke(command, ["check"]).exit_code == (2 if problem else 0)


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


@pytest.mark.sandbox
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the worker has a /dev of its own on Linux")
def test_what_is_said_of_devices_is_what_a_worker_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".skep-test-") as home:
        monkeypatch.chdir(home)
        monkeypatch.setenv("XDG_STATE_HOME", f"{home}/state")
        # bwrap has /dev/console where its output is a terminal; a link is judged by where it leads on this machine
        here = [entry.path for entry in os.scandir("/dev") if entry.name != "console" and not entry.is_symlink()]
        argv = [sys.executable, "-m", "skep_cli", "exec", "--", "ls", "/dev"]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
        inside = {f"/dev/{name}" for name in done.stdout.split()}
        assert {"/dev/null", "/dev/shm"} <= inside  # a container's own /dev may hold no more than a worker's
        for path in here:
            told = CliRunner().invoke(command, ["explain", path])
            assert (told.exit_code == 0) is (path in inside), told.output
        assert (
            "write: the worker has a /dev/shm of its own" in CliRunner().invoke(command, ["explain", "/dev/shm"]).output
        )
