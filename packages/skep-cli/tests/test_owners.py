"""In somebody else's repository: what is made there is its owner's, and what cannot be done says who could."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from skep_cli.owners import closed_to_worker

from .stage import git, make_repo, run, skep

SOMEBODY = pwd.getpwnam("nobody")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be in the repository of another user")


@pytest.fixture
def theirs() -> Generator[Path]:
    """A repository of somebody else's, where they can reach it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        repo = make_repo(Path(folder) / "repo", {"f": "a\n", "sub/g": "g\n"})
        for path in (repo, *repo.rglob("*")):
            os.lchown(path, SOMEBODY.pw_uid, SOMEBODY.pw_gid)
        yield repo


def owners(repo: Path) -> set[int]:
    return {path.lstat().st_uid for path in (repo, *repo.rglob("*"))}


def as_owner(*words: str) -> str:
    done = subprocess.run(
        [shutil.which(words[0]) or words[0], *words[1:]],
        user=SOMEBODY.pw_uid,
        group=SOMEBODY.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        cwd="/",
        check=True,
    )
    return done.stdout


@as_root
def test_what_root_approves_belongs_to_the_owner_of_the_repository(state: Path, theirs: Path) -> None:
    done, _ = run(state, theirs, "echo b > f; echo n > new")
    told = skep(state, "approve", "--force", done.id)
    assert told.returncode == 0, told.stderr
    assert owners(theirs) == {SOMEBODY.pw_uid}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    as_owner("git", "-C", str(theirs), *identity, "merge", "-q", f"skep/{done.id}")
    as_owner("git", "-C", str(theirs), "fsck", "--strict")
    as_owner("git", "-C", str(theirs), "branch", "-D", f"skep/{done.id}")
    assert (theirs / "f").read_text() == "b\n"


@as_root
def test_root_does_not_follow_the_owner_where_they_may_not_go(state: Path, theirs: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(theirs / ".git/logs/refs/heads")
    (theirs / ".git/refs/heads/skep").symlink_to(outside)
    (theirs / ".git/logs/refs/heads").symlink_to(outside)
    done, _ = run(state, theirs, "echo b > f")
    told = skep(state, "approve", "--force", done.id)
    assert told.returncode == 1 and len(told.stderr.splitlines()) == 1, told.stderr
    assert list(outside.iterdir()) == []


@as_root
@pytest.mark.parametrize("what", ["objects", "."])
def test_folders_of_roots_in_a_repository_of_somebody_elses_lend_no_powers(
    state: Path, theirs: Path, tmp_path: Path, what: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    done, _ = run(state, theirs, "echo b > f")
    dot, lent = theirs / ".git", tmp_path / "lent"
    shutil.rmtree(dot / "logs/refs/heads")
    (dot / "refs/heads/skep").symlink_to(outside)
    (dot / "logs/refs/heads").symlink_to(outside)
    shutil.copytree(dot / what, lent, symlinks=True)
    shutil.rmtree(dot / what)
    (dot / what if what != "." else dot).symlink_to(lent)
    told = skep(state, "approve", "--force", done.id)
    assert told.returncode == 1 and len(told.stderr.splitlines()) == 1, told.stderr
    assert list(outside.iterdir()) == []


def test_what_we_approve_in_our_own_repository_is_ours(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, "echo b > f")
    assert skep(state, "approve", "--force", done.id).returncode == 0
    assert owners(repo) == {os.geteuid()}
    assert git(repo, "rev-parse", "--verify", f"skep/{done.id}")


@as_root
@pytest.mark.sandbox
def test_root_is_told_why_it_may_not_write_in_a_folder_of_somebody_elses(state: Path, theirs: Path) -> None:
    done = skep(state, "exec", "--", "touch", "new", cwd=theirs)
    assert done.returncode == 1 and not (theirs / "new").exists()
    lines = done.stderr.splitlines()
    assert "belongs to nobody" in lines[-1] and "runuser -u nobody -- skep exec" in lines[-1], done.stderr
    assert skep(state, "exec", "--", "cat", "f", cwd=theirs).stderr == ""
    theirs.chmod(0o777)
    assert skep(state, "exec", "--", "touch", "new", cwd=theirs).returncode == 0
    assert "belongs" not in skep(state, "exec", "--", "false", cwd=theirs).stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_who_may_not_write_in_a_repository_is_told_whose_it_is(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, "echo b > f")
    objects = repo / ".git/objects"
    objects.chmod(0o555)
    try:
        told = skep(state, "approve", "--force", done.id)
        assert told.returncode == 1 and len(told.stderr.splitlines()) == 1
        assert "you may not write there" in told.stderr and str(folder.patch) in told.stderr
    finally:
        objects.chmod(0o755)
    assert skep(state, "approve", "--force", done.id).returncode == 0


def test_a_folder_that_is_gone_is_nobodys_to_tell_of(tmp_path: Path) -> None:
    assert closed_to_worker(str(tmp_path / "gone")) is None


def test_a_folder_of_ones_own_that_is_read_only_is_told_with_what_opens_it(tmp_path: Path) -> None:
    asks = f"""if True:
        import os
        from skep_cli.owners import closed_to_worker
        os.geteuid() or os.setuid(12345)
        print(closed_to_worker({str(tmp_path)!r}))"""
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)

    def told() -> str:
        return subprocess.run([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True, cwd="/").stdout.strip()

    for folder in (tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    tmp_path.chmod(0o555)
    assert told().endswith(f"is read-only for you as well; `chmod u+w {tmp_path}` changes that")
    tmp_path.chmod(0o755)
    assert told() == "None"
