"""git on the host obeys nobody but its command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from skep_cli.errors import CannotRun
from skep_cli.git.hostgit import Git, GitFailed, failure, find_git, make_git_dir, user_config

from .stage import GIT, git, make_repo


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "ran"


def plant(git_dir: Path, tree: Path, mark: Path) -> None:
    """Everything in a repository that makes git run something."""
    hooks = git_dir / "hooks"
    hooks.mkdir(exist_ok=True)
    names = (
        "pre-commit",
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "pre-auto-gc",
        "post-commit",
        "update",
        "fsmonitor-watchman",
    )
    for name in names:
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{mark}'\n")
        (hooks / name).chmod(0o755)
    for key, value in {
        "core.fsmonitor": f"touch '{mark}'; false",
        "core.hooksPath": str(hooks),
        "core.sshCommand": f"touch '{mark}'",
        "core.pager": f"touch '{mark}'",
        "core.editor": f"touch '{mark}'",
        "core.alternateRefsCommand": f"touch '{mark}'",
        "filter.x.clean": f"touch '{mark}'; cat",
        "filter.x.smudge": f"touch '{mark}'; cat",
        "filter.x.process": f"touch '{mark}'",
        "diff.x.textconv": f"touch '{mark}'; cat",
        "diff.x.command": f"touch '{mark}'",
        "diff.external": f"touch '{mark}'",
        "merge.x.driver": f"touch '{mark}'",
    }.items():
        git(tree, "config", "--file", str(git_dir / "config"), key, value)
    (tree / ".gitattributes").write_text("* filter=x diff=x merge=x\n")


def test_nothing_planted_in_the_users_repository_runs_by_what_is_done_there(tmp_path: Path, mark: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "1\n"})
    head = git(repo, "rev-parse", "HEAD").strip()
    plant(repo / ".git", repo, mark)
    (repo / "a").write_text("2\n")
    theirs = Git(GIT, repo / ".git", work_tree=repo)
    assert theirs.text("rev-parse", "--verify", "HEAD^{commit}") == head
    theirs.run("ls-files", "--stage", "-v", "--debug", "-z")
    Git(GIT, repo / ".git").run("update-ref", "-m", "x", "refs/heads/new", head, "0" * 40)
    assert git(repo, "--no-pager", "-c", "core.fsmonitor=false", "rev-parse", "new").strip() == head
    assert not mark.exists()


def test_the_control_of_that_test_does_run_something(tmp_path: Path, mark: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "1\n"})
    plant(repo / ".git", repo, mark)
    subprocess.run([GIT, "status"], cwd=repo, capture_output=True, check=False)
    assert mark.exists()


def test_a_git_dir_of_our_own_takes_nothing_from_system_user_template_or_environment(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, template = tmp_path / "home", tmp_path / "template"
    (template / "hooks").mkdir(parents=True)
    (home / ".config/git").mkdir(parents=True)
    (home / ".gitconfig").write_text(f"[init]\n\ttemplateDir = {template}\n[core]\n\tfsmonitor = touch {mark}\n")
    (home / ".config/git/attributes").write_text("* text eol=crlf\n")
    for name, value in {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "GIT_DIR": str(tmp_path / "nowhere"),
        "GIT_TEMPLATE_DIR": str(template),
        "GIT_EXTERNAL_DIFF": f"touch {mark}",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "maybe",
        "GIT_TRACE": str(mark),
    }.items():
        monkeypatch.setenv(name, value)
    own = make_git_dir(GIT, tmp_path / "git", object_format="sha1", borrow=None)
    assert own.text("rev-parse", "--is-bare-repository") == "true"
    assert not (own.git_dir and (Path(own.git_dir) / "hooks").exists())
    assert not mark.exists() and not any(name.startswith("GIT_TRACE") for name in own.environment())


def test_nothing_is_fetched(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "1\n"})
    with pytest.raises(GitFailed, match="not allowed"):
        Git(GIT, repo / ".git").run("fetch", str(make_repo(tmp_path / "other", {"b": ""})))


def test_an_error_is_one_line_with_what_git_said() -> None:
    error = failure("add", 128, b"hint: this\nwarning: that\nfatal: no such thing\n")
    assert str(error) == "git add failed: fatal: no such thing"
    assert str(failure("add", 3, b"")) == "git add failed: exit status 3"


def test_a_full_disk_is_told_as_one() -> None:
    error = failure("add", 128, b"fatal: write error: No space left on device\n")
    assert isinstance(error, OSError) and error.errno == 28


def test_a_git_a_worker_could_have_planted_is_passed_over(tmp_path: Path) -> None:
    own = tmp_path / "own"
    planted = [tmp_path / "repo/.venv/bin", tmp_path / "repo/part/node_modules/.bin"]
    for folder in (own, *planted):
        folder.mkdir(parents=True)
        (folder / "git").write_text("#!/bin/sh\n")
        (folder / "git").chmod(0o755)
    (tmp_path / "repo/.git").mkdir()
    (tmp_path / "links").mkdir()
    (tmp_path / "links/git").symlink_to(planted[0] / "git")
    (tmp_path / "alias").symlink_to(tmp_path / "repo/part")
    path = ":".join(("", ".", *map(str, planted), str(tmp_path / "links"), f"{own}"))
    for project in (tmp_path / "repo", tmp_path / "repo/part", tmp_path / "alias"):
        assert find_git({"PATH": path}, project=str(project)) == str(own / "git")
    assert find_git({"PATH": path}) == str(planted[0] / "git")
    with pytest.raises(CannotRun, match="outside of the project"):
        find_git({"PATH": str(planted[0])}, project=str(tmp_path / "repo"))


def test_no_git_on_path_is_exit_125() -> None:
    with pytest.raises(CannotRun) as error:
        find_git({"PATH": "/nonexistent"})
    assert error.value.exit_code == 125


def test_the_users_own_settings_are_read_as_their_git_reads_them(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": ""})
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Global\n[core]\n\texcludesFile = ~/ignore\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_DIR": "/nonexistent"}

    def ask(name: str, git_dir: str | None, kind: str = "") -> str | None:
        return user_config(GIT, name, git_dir=git_dir, environ=environ, kind=kind)

    assert ask("user.name", None) == "Global"
    assert ask("core.excludesFile", None, "path") == str(home / "ignore")
    git(repo, "config", "user.name", "Local")
    assert ask("user.name", str(repo / ".git")) == "Local"
    assert ask("user.email", str(repo / ".git")) is None
