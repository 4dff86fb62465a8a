"""Nothing a worker leaves can stop its removal, and nothing else is removed with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_cli.workspace.removal import open_up, remove


def test_closed_folders_and_read_only_files_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a/b").mkdir(parents=True)
    (tree / "a/b/f").write_text("x")
    (tree / "a/b/f").chmod(0)
    (tree / "a/b").chmod(0)
    (tree / "a").chmod(0)
    tree.chmod(0)
    remove(tree)
    assert not tree.exists()


def test_a_tree_deeper_than_a_path_can_be_long_goes(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for number in range(1200):  # more than PATH_MAX, than Python calls, than descriptors a shell starts with
        os.mkdir("deep" * 10, dir_fd=here)
        deeper = os.open("deep" * 10, os.O_RDONLY, dir_fd=here)
        if number % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deeper))
        os.close(here)
        here = deeper
    os.close(here)
    remove(tree)
    assert not tree.exists()


def test_links_go_and_what_they_point_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("mine")
    outside.chmod(0o555)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "file").symlink_to(outside / "f")
    remove(tree)
    assert not tree.exists() and (outside / "f").read_text() == "mine"
    assert outside.stat().st_mode & 0o777 == 0o555
    outside.chmod(0o755)


def test_a_link_in_place_of_the_tree_goes_alone(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "tree").symlink_to(tmp_path / "real")
    remove(tmp_path / "tree")
    assert (tmp_path / "real").is_dir() and not os.path.lexists(tmp_path / "tree")


def test_names_that_look_like_those_used_on_the_way_do_no_harm(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(1, 5):
        (tree / f".skep-gone-{number}/.skep-gone-{number + 1}/x").mkdir(parents=True)
    remove(tree)
    assert not tree.exists()


def test_pipes_and_odd_names_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "pipe")
    for name in (b"\xff", b"new\nline", b"-rf", b"*"):
        (tree / os.fsdecode(name)).mkdir()
    remove(tree)
    assert not tree.exists()


def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove(tmp_path / "nothing")


def test_a_link_is_not_opened_up(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to("real")
    open_up("link", str(tmp_path))
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o500
    with pytest.raises(FileNotFoundError):
        open_up("nothing", str(tmp_path))
