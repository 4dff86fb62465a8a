"""Where the user's repository is, and what its index says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_cli.errors import UsageError
from skep_cli.git.repository import Repository, detach, find, index

from .stage import GIT, git, make_repo


def found(folder: Path, home: str | None = None) -> Repository:
    repository = find(GIT, folder, home=home)
    assert repository is not None
    return repository


def test_a_checkout_is_found_with_its_commit_and_branch(repo: Path) -> None:
    it = found(repo)
    assert it.root == str(repo) and it.git_dir == it.common_dir == str(repo / ".git")
    assert (it.head, it.branch, it.object_format) == (git(repo, "rev-parse", "HEAD").strip(), "main", "sha1")


def test_a_folder_without_a_repository_is_a_plain_one(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert find(GIT, tmp_path / "plain", home=None) is None


def test_an_empty_repository_has_no_commit_and_a_detached_one_no_branch(tmp_path: Path, repo: Path) -> None:
    empty = found(make_repo(tmp_path / "empty"))
    assert (empty.head, empty.branch) == (None, "main")
    git(repo, "checkout", "-q", "--detach")
    assert found(repo).branch is None and found(repo).head is not None


def test_a_sha256_repository_is_known_as_one(tmp_path: Path) -> None:
    it = found(make_repo(tmp_path / "r", {"a": ""}, "--object-format=sha256"))
    assert it.object_format == "sha256" and it.head is not None and len(it.head) == 64


def test_a_linked_worktree_shares_the_objects_of_the_main_one(tmp_path: Path, repo: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "topic", str(tmp_path / "linked"))
    it = found(tmp_path / "linked")
    assert it.root == str(tmp_path / "linked") and it.branch == "topic"
    assert it.objects == str(repo / ".git/objects") and it.git_dir == str(repo / ".git/worktrees/linked")


def test_a_tracked_folder_inside_is_part_of_its_repository_and_an_untracked_one_is_not(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"sub/deep/a": "", "top": ""})
    (repo / "other").mkdir()
    assert found(repo / "sub").root == found(repo / "sub/deep").root == str(repo)
    assert find(GIT, repo / "other", home=None) is None


def test_a_repository_that_holds_the_home_is_not_copied_for_a_folder_of_it(tmp_path: Path) -> None:
    home = make_repo(tmp_path / "home", {".bashrc": "", "work/a": ""})
    assert find(GIT, home / "work", home=str(home)) is None
    assert find(GIT, home / "work", home=str(home / "work/deeper")) is None
    assert found(home, home=str(home)).root == str(home)
    assert found(home / "work", home=str(tmp_path / "elsewhere")).root == str(home)


@pytest.mark.parametrize("below", [".git", ".git/refs", "bare.git"])
def test_a_git_dir_is_refused(tmp_path: Path, repo: Path, below: str) -> None:
    git(repo, "init", "-q", "--bare", "bare.git")
    with pytest.raises(UsageError, match="name a checkout"):
        find(GIT, repo / below, home=None)


@pytest.mark.parametrize(("text", "says"), [("nonsense", "names none"), ("gitdir: ../gone", "worktree repair")])
def test_a_git_file_that_leads_nowhere_is_named(tmp_path: Path, text: str, says: str) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".git").write_text(text)
    with pytest.raises(UsageError, match=says):
        find(GIT, folder, home=None)


def test_a_repository_git_cannot_read_is_named(repo: Path) -> None:
    (repo / ".git/config").write_text("[core\n")
    with pytest.raises(UsageError, match="git cannot read"):
        find(GIT, repo, home=None)


def test_the_index_is_listed_with_odd_names_stages_and_marks(repo: Path) -> None:
    for name in ("new\nline", os.fsdecode(b"\xff"), "tab\t", "a b"):
        (repo / name).write_text("x\n")
    git(repo, "add", "-A")
    git(repo, "update-index", "--skip-worktree", "a b")
    git(repo, "update-index", "--assume-unchanged", "tab\t")
    listed = index(GIT, found(repo))
    assert {"new\nline", os.fsdecode(b"\xff"), "tab\t", "a b", "calc.py"} <= listed.keys()
    assert [name for name, entry in listed.items() if entry.assumed] == ["a b", "tab\t"]
    info = (repo / "calc.py").lstat()
    entry = listed["calc.py"]
    assert (entry.mtime_ns, entry.ctime_ns, entry.size) == (info.st_mtime_ns, info.st_ctime_ns, info.st_size)
    assert (entry.mode, entry.oid) == (0o100644, git(repo, "rev-parse", "HEAD:calc.py").strip())


def test_a_copy_of_a_linked_worktree_gets_a_git_dir_of_its_own(tmp_path: Path, repo: Path) -> None:
    linked, copy = tmp_path / "linked", tmp_path / "copy"
    git(repo, "worktree", "add", "-q", "-b", "topic", str(linked))
    copy.mkdir()
    (copy / ".git").write_bytes((linked / ".git").read_bytes())
    (copy / "calc.py").write_bytes((linked / "calc.py").read_bytes())
    detach(GIT, found(linked), copy)
    git(copy, "add", "calc.py")
    git(copy, "commit", "-q", "--allow-empty", "-m", "in the copy")
    assert "in the copy" in git(copy, "log", "--format=%s", "topic")
    assert "in the copy" not in git(repo, "log", "--all", "--format=%s")
