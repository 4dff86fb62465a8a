"""Trees as values agree with git's own."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skep_cli.git.trees import (
    EXECUTABLE,
    FILE,
    LINK,
    Change,
    Entry,
    apply,
    build,
    changes,
    git_mode,
    object_id,
    poses_as_git,
)

from .stage import GIT, git, make_repo

BLOB = object_id("blob", b"", "sha1")
NAMES = st.binary(min_size=1, max_size=6).filter(
    lambda name: not set(name) & {0, ord("/")} and name not in (b".", b"..") and b"git" not in name.lower()
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: os.fsdecode(b"/".join(parts)))


def without_conflicts(paths: set[str]) -> list[str]:
    return [path for path in paths if not any(other.startswith(path + "/") for other in paths)]


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=st.sets(PATHS, max_size=12).map(without_conflicts), data=st.data())
def test_a_tree_has_the_id_git_gives_it(object_format: str, paths: list[str], data: st.DataObject) -> None:
    blob = object_id("blob", b"", object_format)
    modes = st.sampled_from([FILE, EXECUTABLE, LINK])
    entries = {path: Entry(data.draw(modes), blob) for path in paths}
    with tempfile.TemporaryDirectory() as folder:
        repo = make_repo(Path(folder) / "r", None, f"--object-format={object_format}")
        git(repo, "hash-object", "-w", "--stdin", text=b"")
        rows = [b"%o %s\t%s\0" % (entry.mode, blob.encode(), os.fsencode(path)) for path, entry in entries.items()]
        git(repo, "update-index", "-z", "--index-info", text=b"".join(rows))
        assert build(entries, object_format).root == git(repo, "write-tree").strip()


def test_a_folder_sorts_as_if_its_name_ended_in_a_slash(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a-b": "", "a/x": "", "a.b": "", "a0": ""})
    entries = {path: Entry(FILE, BLOB) for path in ("a-b", "a/x", "a.b", "a0")}
    assert build(entries, "sha1").root == git(repo, "rev-parse", "HEAD^{tree}").strip()


def test_a_path_that_is_both_file_and_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="both a file and a folder"):
        build({"a": Entry(FILE, BLOB), "a/b": Entry(FILE, BLOB)}, "sha1")


def test_changes_are_what_was_added_changed_and_deleted() -> None:
    one, two = Entry(FILE, "1" * 40), Entry(FILE, "2" * 40)
    assert changes({"same": one, "old": one, "other": one}, {"same": one, "new": one, "other": two}) == [
        Change("new", None, one),
        Change("old", one, None),
        Change("other", one, two),
    ]


@given(st.sets(PATHS).map(without_conflicts), st.sets(PATHS).map(without_conflicts))
def test_changes_applied_to_the_old_give_the_new(old: list[str], new: list[str]) -> None:
    before = {path: Entry(FILE, "1" * 40) for path in old}
    after = {path: Entry(FILE, "2" * 40) for path in new}
    assert apply(before, changes(before, after)) == after


def test_a_file_where_a_folder_stood_takes_its_place_and_the_reverse() -> None:
    entry = Entry(FILE, BLOB)
    assert apply({"a": entry, "b": entry}, [Change("a/x", None, entry)]) == {"a/x": entry, "b": entry}


@pytest.mark.parametrize(
    "name",
    [
        ".GIT",
        ".Git",
        "git~1",
        "GIT~2",
        ".git.",
        ".git ",
        ".git. .",
        ".git:stream",
        ".g\u200cit",
        ".git\u200d",
        ".git\\x",
    ],
)
def test_a_name_some_file_system_takes_for_git_is_known(name: str) -> None:
    assert poses_as_git(name)


@pytest.mark.parametrize("name", [".gitignore", ".github", "git", "x.git", ".git-x", "agit~1", ".gitmodules", "git~x"])
def test_an_ordinary_name_is_no_pose(name: str) -> None:
    assert not poses_as_git(name)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (0o100644, FILE),
        (0o100600, FILE),
        (0o100755, EXECUTABLE),
        (0o100744, EXECUTABLE),
        (0o100655, FILE),
        (0o120777, LINK),
    ],
)
def test_the_mode_is_the_one_git_keeps(mode: int, expected: int) -> None:
    assert git_mode(mode) == expected


def test_git_itself_is_asked_about_names_that_pose(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": ""})
    blob = git(repo, "rev-parse", "HEAD:a").strip()
    for name in (".GIT", "git~1", ".g\u200cit", ".git.", ".gitignore", "x.git", "git"):
        tree = git(repo, "mktree", "-z", text=f"100644 blob {blob}\t{name}\0".encode()).strip()
        done = subprocess.run([GIT, "fsck", "--strict", tree], cwd=repo, capture_output=True, text=True, check=False)
        refused = f"error in tree {tree}: hasDotgit" in done.stderr
        assert refused == poses_as_git(name), name
