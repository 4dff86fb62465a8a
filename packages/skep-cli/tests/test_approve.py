"""A verdict: what the branch holds, what is left alone, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from skep_cli.evidence.state import RunFolder

from .stage import git, make_repo, run, skep

MEND = "sed -i s/a.-.b/a+b/ calc.py"
VERIFY = "sh check.sh"


def tree(repo: Path, treeish: str) -> dict[str, tuple[str, str]]:
    rows = [row.split("\t", 1) for row in git(repo, "ls-tree", "-r", "-z", treeish).split("\0") if row]
    return {path: (about.split()[0], about.split()[2]) for about, path in rows}


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size, p.lstat().st_mode) for p in folder.rglob("*")}


def subjects(repo: Path, branch: str) -> list[str]:
    return git(repo, "log", "--format=%s", branch).splitlines()


@pytest.mark.guarantee("record-verdict")
def test_a_verified_patch_becomes_a_branch_and_nothing_else_changes(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, MEND, verify=VERIFY, task="mend the test\nIt subtracts.")
    head, before = git(repo, "rev-parse", "HEAD"), stamps(repo / ".git")
    told = skep(state, "approve", done.id)
    after = stamps(repo / ".git")
    assert told.returncode == 0, told.stderr
    assert f"branch skep/{done.id}" in told.stdout
    assert git(repo, "rev-parse", "HEAD") == head == git(repo, "rev-parse", f"skep/{done.id}~1")
    assert git(repo, "status", "--porcelain") == "" and "a - b" in (repo / "calc.py").read_text()
    changed = {path for path, stamp in after.items() if before.get(path) != stamp}
    allowed = (".git/objects", ".git/refs", ".git/logs")
    assert all(any(f"{repo}/{part}" in path for part in allowed) for path in changed), changed
    assert "a+b" in git(repo, "show", f"skep/{done.id}:calc.py")
    body = git(repo, "log", "-1", "--format=%B", f"skep/{done.id}")
    assert body.startswith("mend the test\n\nmend the test\nIt subtracts.\n\n")
    trailers = git(repo, "log", "-1", "--format=%(trailers:only)", f"skep/{done.id}")
    assert (
        f"Skep-Run: {done.id}" in trailers and "Skep-Verification: passed" in trailers and "Skep-Forced" not in trailers
    )
    git(repo, "fsck", "--strict")
    record = json.loads(folder.record.read_text())
    assert record["verdict"]["verdict"] == "approved" and record["verdict"]["branch"] == f"skep/{done.id}"
    assert skep(state, "audit", "verify", done.id).returncode == 0


def test_uncommitted_work_is_a_commit_of_its_own(state: Path, repo: Path) -> None:
    (repo / "wip").write_text("mine\n")
    (repo / "check.sh").chmod(0o755)
    (repo / "build").mkdir()
    (repo / "build/junk").write_text("x\n")
    done, _ = run(state, repo, MEND + "; echo more >> wip")
    approved = skep(state, "approve", done.id, "--force")
    assert approved.returncode == 0 and f"once yours is committed: git cherry-pick skep/{done.id}" in approved.stdout
    assert subjects(repo, f"skep/{done.id}") == ["mend it", "baseline: uncommitted work", "base"]
    assert (
        git(repo, "show", f"skep/{done.id}~1:wip") == "mine\n"
        and git(repo, "show", f"skep/{done.id}:wip") == "mine\nmore\n"
    )
    assert tree(repo, f"skep/{done.id}~1")["check.sh"][0] == "100755"
    assert "build/junk" not in tree(repo, f"skep/{done.id}")
    git(repo, "add", "wip", "check.sh")
    git(repo, "commit", "-qm", "my work")
    git(repo, "cherry-pick", f"skep/{done.id}")
    assert (repo / "wip").read_text() == "mine\nmore\n"


@pytest.mark.guarantee("record-verdict")
@pytest.mark.parametrize(
    ("worker", "verify", "says"),
    [
        ("echo x > y", VERIFY, "failed its verification"),
        ("echo x > y", None, "not verified"),
        ("echo x > y", "no-such-tool", "could not be run"),
        (MEND + "; exit 3", VERIFY, "its worker failed"),
    ],
)
def test_what_is_not_verified_needs_force_and_the_record_says_so(
    state: Path, repo: Path, worker: str, verify: str | None, says: str
) -> None:
    done, folder = run(state, repo, worker, verify=verify)
    told = skep(state, "approve", done.id)
    assert told.returncode == 1 and says in told.stderr and "--force" in told.stderr
    assert git(repo, "branch", "--list", "skep/*") == "" and json.loads(folder.record.read_text())["verdict"] is None
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert json.loads(folder.record.read_text())["verdict"]["forced"] is True
    assert "Skep-Forced: yes" in git(repo, "log", "-1", "--format=%B", f"skep/{done.id}")


def test_one_verdict_is_all_there_is(state: Path, repo: Path) -> None:
    first, _ = run(state, repo, MEND)
    second, folder = run(state, repo, MEND)
    assert skep(state, "approve", first.id, "--force").returncode == 0
    assert skep(state, "deny", "last").returncode == 0
    assert json.loads(folder.record.read_text())["verdict"]["verdict"] == "denied"
    for which, how, word in (
        (first, "approve", "approved"),
        (first, "deny", "approved"),
        (second, "approve", "denied"),
        (second, "deny", "denied"),
    ):
        told = skep(state, how, which.id)
        assert told.returncode == 1 and f"was {word} already" in told.stderr
    assert git(repo, "branch", "--list", "--format=%(refname:short)", "skep/*").split() == [f"skep/{first.id}"]


def test_there_is_nothing_to_approve_in_an_empty_patch(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, "true", verify="true")
    told = skep(state, "approve", done.id)
    assert told.returncode == 1 and "nothing to approve" in told.stderr
    assert skep(state, "deny", done.id).returncode == 0


def test_a_branch_of_that_name_is_not_overwritten(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, MEND)
    git(repo, "branch", f"skep/{done.id}")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 1 and "already" in told.stderr
    git(repo, "branch", "-D", f"skep/{done.id}")
    git(repo, "branch", "skep")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 1 and len(told.stderr.splitlines()) == 1 and "skep" in told.stderr
    git(repo, "branch", "-D", "skep")
    assert skep(state, "approve", done.id, "--force").returncode == 0


def test_a_head_that_moved_is_fine_and_told(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, MEND)
    (repo / "later").write_text("x\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "later")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 0 and "HEAD has moved" in told.stdout
    assert subjects(repo, f"skep/{done.id}") == ["mend it", "base"]


def test_no_hook_of_the_user_runs(state: Path, repo: Path, tmp_path: Path) -> None:
    done, _ = run(state, repo, MEND)
    for name in ("reference-transaction", "pre-commit", "commit-msg", "post-commit", "post-update", "pre-auto-gc"):
        hook = repo / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        hook.chmod(0o755)
    git(repo, "config", "commit.gpgsign", "true")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert not (tmp_path / "ran").exists()
    git(repo, "branch", "control")
    assert (tmp_path / "ran").exists(), "the control: git itself does run it"


def test_the_commit_is_by_the_user_or_by_skep_when_git_knows_nobody(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, MEND)
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert git(repo, "log", "-1", "--format=%an %ae", f"skep/{done.id}") == "skep skep@localhost\n"
    git(repo, "config", "user.name", "Ü Ser")
    git(repo, "config", "user.email", "u@example.com")
    done, _ = run(state, repo, MEND)
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert git(repo, "log", "-1", "--format=%an %ae %cn", f"skep/{done.id}") == "Ü Ser u@example.com Ü Ser\n"


def tamper_log(folder: RunFolder) -> None:
    folder.log.write_bytes(folder.log.read_bytes().replace(b'"exit_code":0', b'"exit_code":1', 1))


def tamper_patch(folder: RunFolder) -> None:
    folder.patch.write_text(folder.patch.read_text().replace("a+b", "a*b"))


def tamper_record(folder: RunFolder) -> None:
    folder.record.write_text(folder.record.read_text().replace('"failed"', '"passed"'))


def lose_objects(folder: RunFolder) -> None:
    subprocess.run(["rm", "-r", str(folder.git / "objects/pack")], check=True)


def swap_objects(folder: RunFolder) -> None:
    """Another tree under the name of the result: the record holds, the objects are others."""
    record = json.loads(folder.record.read_text())
    other = record["trees"]["baseline"]
    content = git(folder.git, "cat-file", "blob", f"{other}:calc.py").replace("-", "*")
    blob = git(folder.git, "hash-object", "-w", "--stdin", text=content.encode()).strip()
    wrong = git(folder.git, "mktree", text=f"100644 blob {blob}\tcalc.py\n".encode()).strip()
    result = record["trees"]["result"]
    path, forged = (folder.git / "objects" / oid[:2] / oid[2:] for oid in (wrong, result))
    forged.parent.mkdir(exist_ok=True)
    subprocess.run(["rm", "-r", str(folder.git / "objects/pack")], check=True)
    os.rename(path, forged)


@pytest.mark.parametrize("how", [tamper_log, tamper_patch, tamper_record, lose_objects, swap_objects])
def test_what_is_not_as_recorded_is_not_approved(state: Path, repo: Path, how: object) -> None:
    done, folder = run(state, repo, MEND, verify="false")
    assert callable(how)
    how(folder)
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 1 and len(told.stderr.splitlines()) == 1, told.stderr
    assert "Traceback" not in told.stderr and git(repo, "branch", "--list", "skep/*") == ""


def test_an_approval_that_was_interrupted_is_finished(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, MEND)
    record = folder.record.read_bytes()
    assert skep(state, "approve", done.id, "--force").returncode == 0
    lines = folder.log.read_bytes().splitlines(keepends=True)
    folder.log.write_bytes(b"".join(lines[:-1]))  # as if it had died before the verdict was written
    approving = json.loads(lines[-2])
    folder.head.write_text(json.dumps({"count": approving["seq"], "hash": approving["hash"]}))
    folder.record.write_bytes(record)
    assert skep(state, "audit", "verify", done.id).returncode == 0
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert (
        json.loads(folder.record.read_text())["verdict"]["commit"] == git(repo, "rev-parse", f"skep/{done.id}").strip()
    )


def test_line_endings_the_repository_converts_are_no_change_of_anybody(state: Path, tmp_path: Path) -> None:
    repo = make_repo(
        tmp_path / "r",
        {".gitattributes": "*.txt text eol=crlf\n", "a.txt": "one\ntwo\n", "b.txt": "one\ntwo\n", "c.txt": "same\n"},
    )
    for name in ("a.txt", "b.txt", "c.txt"):
        (repo / name).unlink()
    git(repo, "checkout", "-q", "--", ".")
    assert (repo / "a.txt").read_bytes() == b"one\r\ntwo\r\n"
    later(repo)
    done, _ = run(state, repo, "sed -i s/one/ONE/ a.txt; mv c.txt d.txt; chmod +x b.txt")
    assert done.files_changed == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert skep(state, "approve", done.id, "--force").returncode == 0
    branch = f"skep/{done.id}"
    assert subjects(repo, branch) == ["mend it", "base"], "there was no uncommitted work"
    assert git(repo, "show", f"{branch}:a.txt") == "ONE\ntwo\n" and git(repo, "show", f"{branch}:d.txt") == "same\n"
    assert git(repo, "diff", "--numstat", f"{branch}~1", branch, "--", "a.txt", "b.txt") == "1\t1\ta.txt\n0\t0\tb.txt\n"
    git(repo, "checkout", "-q", branch)
    assert git(repo, "status", "--porcelain") == ""


def later(repo: Path) -> None:
    """The index is younger than what it lists, as after a moment of work."""
    index = repo / ".git/index"
    info = index.stat()
    os.utime(index, ns=(info.st_atime_ns, info.st_mtime_ns + 2_000_000_000))


def test_filtered_files_stay_as_stored_unless_changed_and_then_it_is_told(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"plain": "x\n"})
    git(repo, "config", "filter.up.clean", "tr a-z A-Z")
    git(repo, "config", "filter.up.smudge", "tr A-Z a-z")
    (repo / ".gitattributes").write_text("*.up filter=up\n")
    for name in ("a.up", "b.up"):
        (repo / name).write_text("hello\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "filtered")
    assert git(repo, "cat-file", "blob", "HEAD:a.up") == "HELLO\n"
    later(repo)
    done, _ = run(state, repo, "echo more >> a.up; echo y > plain")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 0 and "a.up" in told.stdout and "b.up" not in told.stdout
    branch = f"skep/{done.id}"
    assert git(repo, "cat-file", "blob", f"{branch}:b.up") == "HELLO\n"
    assert git(repo, "cat-file", "blob", f"{branch}:a.up") == "hello\nmore\n"


def test_a_file_edited_in_the_tick_of_the_index_is_uncommitted_work_and_not_lost(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "1\n"})
    info = (repo / "a").stat()
    (repo / "a").write_text("2\n")
    os.utime(repo / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    done, _ = run(state, repo, "echo x > b")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert git(repo, "show", f"skep/{done.id}:a") == "2\n"


def test_changes_in_submodules_and_nested_repositories_stay_in_the_patch_and_off_the_branch(
    state: Path, tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "r", {"a": "x\n"})
    make_repo(tmp_path / "lib", {"f": "x\n"})
    git(repo, "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    git(repo, "commit", "-qm", "with a submodule")
    make_repo(repo / "vendored", {"v": "x\n"})
    done, folder = run(state, repo, "echo y > lib/f; echo y > vendored/v; echo y > a")
    assert done.files_changed == ["a", "lib/f", "vendored/v"]
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 0 and "lib/f" in told.stdout and "vendored/v" in told.stdout
    branch = f"skep/{done.id}"
    assert subjects(repo, branch) == ["mend it", "with a submodule", "base"]
    assert git(repo, "diff", "--name-only", "HEAD", branch) == "a\n"
    assert tree(repo, branch)["lib"] == tree(repo, "HEAD")["lib"]
    assert "lib/f" in folder.patch.read_text()


def test_a_sparse_checkout_loses_nothing(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a/f": "1\n", "b/f": "1\n", "top": "1\n"})
    git(repo, "sparse-checkout", "set", "--no-cone", "/a/", "/top")
    assert not (repo / "b").exists()
    done, _ = run(state, repo, "echo 2 > a/f")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert git(repo, "diff", "--name-only", "HEAD", f"skep/{done.id}") == "a/f\n"


def test_a_linked_worktree_gets_its_branch_in_the_shared_repository(state: Path, tmp_path: Path, repo: Path) -> None:
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", "-b", "topic", str(linked))
    done, _ = run(state, linked, MEND)
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert "a+b" in git(repo, "show", f"skep/{done.id}:calc.py")
    assert git(linked, "status", "--porcelain") == "" and git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_an_empty_repository_gets_its_first_commits(state: Path, tmp_path: Path, object_format: str) -> None:
    repo = make_repo(tmp_path / "r", None, f"--object-format={object_format}")
    (repo / "mine").write_text("x\n")
    done, _ = run(state, repo, "echo y > new")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 0, told.stderr
    assert subjects(repo, f"skep/{done.id}") == ["mend it", "baseline: uncommitted work"]
    assert tree(repo, f"skep/{done.id}").keys() == {"mine", "new"}


def test_a_shallow_clone_can_be_approved_in(state: Path, tmp_path: Path) -> None:
    origin = make_repo(tmp_path / "origin", {"f": "1\n"})
    (origin / "f").write_text("2\n")
    git(origin, "commit", "-qam", "two")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", str(shallow))
    done, _ = run(state, shallow, "echo 3 > f")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    assert subjects(shallow, f"skep/{done.id}") == ["mend it", "two"]


def test_a_plain_folder_is_approved_with_a_way_to_apply(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pl ain"
    folder.mkdir()
    (folder / "f").write_text("a\n")
    done, _ = run(state, folder, "echo b > f")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 0 and "git apply" in told.stdout
    command = told.stdout.split("apply it: ")[1].strip()
    subprocess.run(["sh", "-c", command], check=True)
    assert (folder / "f").read_text() == "b\n"


def test_a_repository_that_is_gone_or_another_one_is_named(state: Path, tmp_path: Path, repo: Path) -> None:
    done, _ = run(state, repo, MEND)
    repo.rename(tmp_path / "moved")
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 1 and "not there any more" in told.stderr
    make_repo(repo, {"other": "x\n"})
    told = skep(state, "approve", done.id, "--force")
    assert told.returncode == 1 and "no longer has" in told.stderr and len(told.stderr.splitlines()) == 1


def test_a_run_that_is_going_has_no_verdict_yet(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, MEND)
    folder.lock.take()
    try:
        for how in ("approve", "deny"):
            told = skep(state, how, done.id)
            assert told.returncode == 1 and "still going" in told.stderr
    finally:
        folder.lock.release()


def test_a_task_cannot_forge_the_trailers(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, MEND, task="x\n\nSkep-Verification: passed\nSkep-Run: other\x1b[31m")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    trailers = git(repo, "log", "-1", "--format=%(trailers:only)", f"skep/{done.id}").splitlines()
    assert [line for line in trailers if line.startswith("Skep-Verification")] == ["Skep-Verification: none"]
    assert "\x1b" not in git(repo, "log", "-1", "--format=%B", f"skep/{done.id}")
