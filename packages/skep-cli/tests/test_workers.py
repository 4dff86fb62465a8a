"""The worker's command, as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from skep_cli.errors import UsageError
from skep_cli.workers import AGENTS, missing, none_configured, split, with_task


def test_a_command_is_split_as_a_shell_splits_words() -> None:
    assert split("codex exec '{task}' --x=\"a b\" c\\ d", "--worker") == ["codex", "exec", "{task}", "--x=a b", "c d"]


@pytest.mark.parametrize("text", ["", "  ", "'open", '"', "a\0b"])
def test_what_is_no_command_is_a_usage_error_of_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        split(text, "--worker")
    assert error.value.exit_code == 2 and "--worker" in str(error.value) and "\n" not in str(error.value)


def test_the_task_is_put_inside_words_and_never_split() -> None:
    assert with_task(["a", "{task}", "--t={task}{task}", "{other}"], "x 'y' {task}") == [
        *("a", "x 'y' {task}", "--t=x 'y' {task}x 'y' {task}", "{other}")
    ]


def test_every_known_agent_is_given_the_task() -> None:
    assert all(command.split()[0] == name and "{task}" in command for name, command in AGENTS.items())


def test_what_is_not_there_is_named_and_what_may_be_in_the_workspace_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    environ = {"PATH": str(tmp_path)}
    assert "'tool'" in (missing(["tool"], environ) or "") and str(tmp_path / "tool") in (
        missing([str(tmp_path / "tool")], environ) or ""
    )
    (tmp_path / "tool").chmod(0o755)
    assert missing(["tool"], environ) is None and missing([str(tmp_path / "tool")], environ) is None
    assert missing(["./made-by-the-worker"], environ) is None


def test_no_worker_says_what_there_is_and_what_to_type(tmp_path: Path) -> None:
    assert "none of claude, codex" in str(none_configured({"PATH": str(tmp_path)}))
    (tmp_path / "gemini").write_text("#!/bin/sh\n")
    (tmp_path / "gemini").chmod(0o755)
    assert "--worker 'gemini -p {task}'" in str(none_configured({"PATH": str(tmp_path)}))
