"""Objects hashed and packed by us are git's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_cli.errors import SkepError
from skep_cli.git.hostgit import GitFailed, make_git_dir
from skep_cli.git.objects import BLOCK, Source, Store, bytes_source, file_source, hash_file
from skep_cli.git.trees import FILE, Entry, object_id

from .stage import GIT, git, make_repo


def store(folder: Path, object_format: str = "sha1", borrow: str | None = None) -> Store:
    return Store(make_git_dir(GIT, folder, object_format=object_format, borrow=borrow), object_format)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("size", [0, 1, 15, 16, 4095, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_a_file_is_hashed_written_and_read_as_git_would(tmp_path: Path, size: int, object_format: str) -> None:
    repo = make_repo(tmp_path / "r", None, f"--object-format={object_format}")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    info = path.stat()
    oid, length = hash_file(str(path), info.st_mode, object_format)
    assert (oid, length) == (git(repo, "hash-object", "--no-filters", str(path)).strip(), size)
    kept = store(tmp_path / "git", object_format)
    assert kept.add([file_source(str(path), info.st_mode, oid, length)]) == 1
    assert kept.add([file_source(str(path), info.st_mode, oid, length)]) == 0
    assert [(o, s, b"".join(b)) for o, s, b in kept.read([oid])] == [(oid, size, path.read_bytes())]
    kept.git.run("fsck", "--strict", "--full")


def test_a_link_is_its_target_and_is_not_followed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(b"somewhere \xff")
    oid, _ = hash_file(str(link), os.lstat(link).st_mode, "sha1")
    assert oid == object_id("blob", b"somewhere \xff", "sha1")
    with pytest.raises(OSError, match=r"."):
        hash_file(str(link), 0o100644, "sha1")


def test_what_the_repository_has_is_borrowed_and_its_folder_not_touched(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "content\n"})
    objects = repo / ".git/objects"

    def stamps() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in objects.rglob("*")}

    for packed in (False, True):
        if packed:
            git(repo, "gc", "-q")
        before = stamps()
        kept = store(tmp_path / f"git{packed}", borrow=str(objects))
        oid = git(repo, "rev-parse", "HEAD:a").strip()
        assert kept.missing([oid, "0" * 39 + "1"]) == {"0" * 39 + "1"}
        assert kept.add([bytes_source(oid, "blob", b"content\n")]) == 0
        assert kept.add_tree({"a": Entry(FILE, oid)}) == git(repo, "rev-parse", "HEAD^{tree}").strip()
        assert stamps() == before


def test_a_folder_with_an_odd_name_can_be_borrowed_from(tmp_path: Path) -> None:
    for number, name in enumerate(
        ('"quoted"', "#hash", "a b", "new\nline", "back\\slash", "ünï", os.fsdecode(b"\xff"))
    ):
        repo = make_repo(tmp_path / name, {"a": f"{number}\n"})
        kept = store(tmp_path / f"git{number}", borrow=str(repo / ".git/objects"))
        assert kept.tree(git(repo, "rev-parse", "HEAD").strip()).keys() == {"a"}, name


def test_a_file_that_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    kept = store(tmp_path / "git")
    oid = object_id("blob", b"before", "sha1")
    with pytest.raises(SkepError, match="changed while"):
        kept.add([bytes_source(oid, "blob", b"behind")])
    with pytest.raises(SkepError, match="changed while"):
        kept.add([Source(oid, "blob", 6, lambda: iter((b"longer than",)))])


def test_names_with_newlines_and_without_meaning_survive(tmp_path: Path) -> None:
    kept = store(tmp_path / "git")
    blob = object_id("blob", b"x", "sha1")
    kept.add([bytes_source(blob, "blob", b"x")])
    entries = {
        os.fsdecode(name): Entry(FILE, blob) for name in (b"a\nb", b"\xff\xfe", b'"q"', b":(top)", b" ", b"\\", b"-x")
    }
    assert kept.tree(kept.add_tree(entries)) == entries


def test_an_object_that_is_not_there_is_an_error_by_name(tmp_path: Path) -> None:
    kept = store(tmp_path / "git")
    with pytest.raises(GitFailed, match="1111111"):
        list(kept.read(["1" * 40]))


def test_a_tree_git_would_refuse_from_a_stranger_is_refused_when_asked(tmp_path: Path) -> None:
    kept = store(tmp_path / "git")
    content = b"100644 .git\0" + bytes.fromhex(object_id("blob", b"", "sha1"))
    bad = bytes_source(object_id("tree", content, "sha1"), "tree", content)
    with pytest.raises(GitFailed):
        kept.add([bad], fsck=True)
