"""What is in a patch and what is not: real repositories, real workers, no boundary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from skep_cli.evidence.record import Run
from skep_cli.workspace.snapshot import MAX_FILE

from .stage import GIT, PLAIN, git, make_repo, run


def changed(state: Path, repo: Path, worker: str | list[str]) -> list[str]:
    return run(state, repo, worker)[0].files_changed


def kinds(run: Run) -> set[tuple[str, str]]:
    return {(finding.kind, finding.path) for finding in run.findings}


def applied(folder: Path, patch: str | None, start: Path) -> Path:
    """A copy of `start` with the patch applied by git, as a user would."""
    assert patch is not None
    subprocess.run(["cp", "-a", str(start), str(folder)], check=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **PLAIN}
    subprocess.run([GIT, "apply", patch], cwd=folder, env=env, check=True, capture_output=True)
    return folder


def test_a_worker_that_changes_nothing_leaves_no_patch(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, "touch calc.py; chmod 600 calc.py; cat calc.py > /dev/null")
    assert done.state == "completed" and done.files_changed == [] and done.patch is None
    assert not folder.patch.exists()


def test_uncommitted_staged_and_untracked_work_is_the_start_and_no_part_of_the_patch(state: Path, repo: Path) -> None:
    (repo / "calc.py").write_text("def add(a, b):\n    return a - b  # mine\n")
    (repo / "staged").write_text("mine\n")
    git(repo, "add", "staged")
    (repo / "untracked").write_text("mine\n")
    (repo / "check.sh").unlink()
    assert changed(state, repo, "cat staged untracked; test ! -e check.sh; echo new > new") == ["new"]


def test_modes_links_binaries_deletions_and_renames_apply_elsewhere(state: Path, tmp_path: Path) -> None:
    files = {
        "gone": "x\n" * 30,
        "moved": "y\n" * 30,
        "tool": "#!/bin/sh\n",
        "bin": bytes(range(256)) * 8,
        "becomes-folder": "z\n",
        "d/f": "f\n",
    }
    repo = make_repo(tmp_path / "r", files)
    script = (
        "rm gone; mkdir e; mv moved e/moved; chmod +x tool; ln -s tool link;"
        "printf '\\0\\1\\2' > new-bin; printf x >> bin;"
        "rm becomes-folder; mkdir becomes-folder; echo q > becomes-folder/x; rm -r d; echo now a file > d; : > empty"
    )
    done, _ = run(state, repo, script)
    result = applied(tmp_path / "applied", done.patch, repo)
    assert not (result / "gone").exists() and (result / "e/moved").read_text() == "y\n" * 30
    assert os.access(result / "tool", os.X_OK) and os.readlink(result / "link") == "tool"
    assert (result / "new-bin").read_bytes() == b"\0\1\2" and (result / "bin").read_bytes() == bytes(
        range(256)
    ) * 8 + b"x"
    assert (result / "becomes-folder/x").read_text() == "q\n" and (result / "d").read_text() == "now a file\n"
    assert (result / "empty").read_bytes() == b""
    assert done.files_changed == sorted(done.files_changed)


def test_an_edit_that_restores_size_and_time_is_in_the_patch(state: Path, repo: Path) -> None:
    script = (
        "import os; s = os.stat('calc.py'); f = open('calc.py', 'r+'); t = f.read();"
        "f.seek(0); f.write(t.replace('-', '+')); f.close();"
        "os.utime('calc.py', ns=(s.st_atime_ns, s.st_mtime_ns)); assert os.stat('calc.py').st_size == s.st_size"
    )
    assert changed(state, repo, [sys.executable, "-c", script]) == ["calc.py"]


def test_new_files_that_the_baseline_ignores_stay_out(state: Path, repo: Path) -> None:
    assert changed(
        state,
        repo,
        "mkdir -p build .venv/x sub; echo x > build/o; echo x > .venv/x/y; echo x > sub/a.log; echo x > sub/a.txt",
    ) == ["sub/a.txt"]


def test_a_worker_cannot_hide_its_work_by_ignoring_it(state: Path, repo: Path) -> None:
    script = (
        "echo '*' > .gitignore; mkdir s; echo '*' > s/.gitignore; echo x > s/evil; echo evil >> calc.py;"
        "echo '*' >> .git/info/exclude; echo x > new"
    )
    assert changed(state, repo, script) == [".gitignore", "calc.py", "new", "s/.gitignore", "s/evil"]


def test_a_worker_cannot_flood_the_patch_by_ignoring_nothing(state: Path, repo: Path) -> None:
    (repo / ".venv").mkdir()
    (repo / ".venv/tool").write_text("tool\n")
    assert changed(state, repo, ": > .gitignore; echo x > .venv/tool; echo x > .venv/new; echo x > a.log") == [
        ".gitignore"
    ]


def test_tracked_files_are_compared_whatever_a_rule_says(state: Path, repo: Path) -> None:
    (repo / "build").mkdir()
    (repo / "build/kept").write_text("x\n")
    git(repo, "add", "-f", "build/kept")
    git(repo, "commit", "-qm", "forced")
    assert changed(state, repo, "echo y > build/kept; echo y > build/other") == ["build/kept"]


def test_rules_of_the_repository_the_user_and_nested_files_count(state: Path, repo: Path, tmp_path: Path) -> None:
    (repo / ".git/info/exclude").write_text("by-exclude\n")
    (tmp_path / "mine").write_text("by-user\n")
    (repo / "sub").mkdir()
    (repo / "sub/.gitignore").write_text("by-nested/\n!*.log\n")
    (repo / "sub/kept.log").write_text("mine\n")
    script = "mkdir -p sub/by-nested; touch by-exclude by-user sub/by-nested/x sub/y.log z.log seen"
    done, _ = run(state, repo, script, user_exclude=str(tmp_path / "mine"))
    assert done.files_changed == ["seen", "sub/y.log"]


def test_names_of_every_kind_are_in_the_patch(state: Path, repo: Path) -> None:
    names = [
        b"new\nline",
        b"\xff\xfe",
        b" lead",
        b"-rf",
        b":(top)x",
        b"./x".replace(b"./", b""),
        b'"q"',
        b"\x1b[31m",
        b"a*b",
        b"back\\slash",
    ]
    script = f"import os\nfor n in {names!r}: open(n, 'wb').write(b'x')"
    expected = sorted((os.fsdecode(name) for name in names), key=os.fsencode)
    done, folder = run(state, repo, [sys.executable, "-c", script])
    assert done.files_changed == expected
    assert b"\x1b" not in folder.patch.read_bytes()


def test_odd_names_in_the_baseline_and_in_its_rules_are_fine(state: Path, repo: Path) -> None:
    for name in (b"new\nline", b"\xff\xfe", b":(top)x", b"a*b"):
        (repo / os.fsdecode(name)).write_text("x\n")
    (repo / ".gitignore").write_bytes(b"\xff*.tmp\nx\\ y\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "odd")
    script = "import os\nfor n in (b'new\\nline', b'\\xff.tmp', b'x y', b'\\xfe.tmp'): open(n, 'ab').write(b'y')"
    assert changed(state, repo, [sys.executable, "-c", script]) == ["new\nline", os.fsdecode(b"\xfe.tmp")]


def test_a_repository_the_worker_makes_inside_is_a_finding_and_its_files_are_in_the_patch(
    state: Path, repo: Path
) -> None:
    script = (
        "git init -q nest; echo x > nest/f; (cd nest; git add f; git -c user.name=a -c user.email=b commit -qm x);"
        "mkdir d; echo 'gitdir: ../nest/.git' > d/.git; echo y > d/g"
    )
    done, _ = run(state, repo, script)
    assert done.files_changed == ["d/g", "nest/f"]
    assert {("nested-repository", "nest"), ("nested-repository", "d")} <= kinds(done)


def test_names_that_pose_as_git_are_left_out_and_told(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, "mkdir .GIT 'git~1' ok; echo x > .GIT/config; echo x > 'git~1/config'; echo x > ok/f")
    assert done.files_changed == ["ok/f"]
    assert {("poses-as-git", ".GIT/config"), ("poses-as-git", "git~1/config")} <= kinds(done)


def test_pipes_and_closed_things_the_worker_leaves_do_not_stop_the_patch(state: Path, repo: Path) -> None:
    done, _ = run(
        state, repo, "mkfifo pipe; mkdir c; echo x > c/f; echo y > g; chmod 0 g c/f; chmod 0 c; echo z >> calc.py"
    )
    assert done.files_changed == ["c/f", "calc.py", "g"]
    assert ("special", "pipe") in kinds(done)


def test_a_file_too_large_for_a_patch_is_left_out_and_told(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, f"truncate -s {MAX_FILE + 1} huge; truncate -s {MAX_FILE + 1} calc.py; echo x > small")
    assert done.files_changed == ["small"]
    assert {("too-large", "huge"), ("too-large", "calc.py")} <= kinds(done)


def test_attributes_of_the_tree_change_no_byte(state: Path, tmp_path: Path) -> None:
    attributes = (
        "*.txt text eol=lf\n*.u text working-tree-encoding=UTF-16\n*.i ident\n*.b -diff\n"
        "[attr]odd filter=x diff=x\n* odd\n"
    )
    repo = make_repo(tmp_path / "r", {".gitattributes": attributes, "a": "x\n"})
    script = "printf 'a\\r\\nb\\r\\n' > crlf.txt; printf 'x\\n' > a.u; printf '$Id$\\n' > a.i; printf 'text\\n' > a.b"
    done, _ = run(state, repo, script)
    result = applied(tmp_path / "applied", done.patch, make_repo(tmp_path / "fresh", {"a": "x\n"}))
    assert (result / "crlf.txt").read_bytes() == b"a\r\nb\r\n"
    assert (result / "a.u").read_bytes() == b"x\n" and (result / "a.i").read_bytes() == b"$Id$\n"
    assert "+text" in Path(done.patch or "").read_text(), "a worker's attributes cannot make its text unreadable"


def test_an_empty_repository_and_a_detached_head_work(state: Path, tmp_path: Path, repo: Path) -> None:
    empty = make_repo(tmp_path / "empty")
    (empty / "mine").write_text("x\n")
    assert changed(state, empty, "echo y > new") == ["new"]
    git(repo, "checkout", "-q", "--detach")
    assert changed(state, repo, "echo y > new") == ["new"]


def test_a_repository_in_the_middle_of_a_merge_works(state: Path, repo: Path) -> None:
    git(repo, "checkout", "-qb", "other")
    (repo / "calc.py").write_text("other\n")
    git(repo, "commit", "-qam", "other")
    git(repo, "checkout", "-q", "main")
    (repo / "calc.py").write_text("main\n")
    git(repo, "commit", "-qam", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "-q", "other")
    assert changed(state, repo, "grep '<<<<' calc.py && echo solved > calc.py") == ["calc.py"]


def test_a_plain_folder_works_and_its_ignore_files_count(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "f").write_text("a\n")
    (folder / ".gitignore").write_text("*.o\n")
    done, _ = run(state, folder, "echo b > f; echo x > a.o; git init -q . ; echo 'gitdir: /etc' > x.git")
    assert done.files_changed == ["f", "x.git"]
    assert (folder / "f").read_text() == "a\n" and not (folder / ".git").exists()


def test_a_linked_worktree_works_and_a_commit_in_the_copy_stays_there(state: Path, tmp_path: Path, repo: Path) -> None:
    linked = tmp_path / "linked"
    git(repo, "worktree", "add", "-q", "-b", "topic", str(linked))
    before = git(repo, "log", "--all", "--format=%H")
    done, _ = run(
        state,
        linked,
        "echo y > new; git add -A; git -c user.name=a -c user.email=b commit -qm inside; git log --format=%s",
    )
    assert done.state == "completed" and done.files_changed == ["new"]
    assert git(repo, "log", "--all", "--format=%H") == before and git(linked, "status", "--porcelain") == ""


def test_commits_checkouts_and_resets_in_the_copy_do_not_confuse_the_patch(state: Path, repo: Path) -> None:
    who = "git -c user.name=a -c user.email=b"
    script = (
        f"echo 1 > one; git add -A; {who} commit -qm one; git checkout -q -b x; echo 2 > two;"
        f"{who} stash -qu; git stash pop -q; git gc -q; rm -rf .git"
    )
    assert changed(state, repo, script) == ["one", "two"]


def test_a_folder_inside_a_repository_starts_the_worker_there_with_the_whole_tree(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"sub/a": "x\n", "lib/b": "x\n"})
    done, _ = run(state, repo / "sub", "test -e a && echo y > c && cat ../lib/b && echo z > ../lib/d")
    assert done.state == "completed" and done.files_changed == ["lib/d", "sub/c"] and done.repo == str(repo)


def test_a_shallow_and_a_sparse_clone_work(state: Path, tmp_path: Path) -> None:
    origin = make_repo(tmp_path / "origin", {"a/f": "1\n", "b/f": "1\n"})
    (origin / "a/f").write_text("2\n")
    git(origin, "commit", "-qam", "two")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", str(shallow))
    assert changed(state, shallow, "echo 3 > a/f") == ["a/f"]
    git(shallow, "sparse-checkout", "set", "--no-cone", "/a/")
    assert not (shallow / "b").exists()
    done, _ = run(state, shallow, "echo 4 > a/f")
    assert done.files_changed == ["a/f"]


def test_a_submodules_files_are_compared_like_any_others(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {"a": "x\n"})
    make_repo(tmp_path / "lib", {"f": "x\n"})
    git(repo, "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    git(repo, "commit", "-qm", "with a submodule")
    done, _ = run(state, repo, "echo y > lib/f; echo y > a; git -C lib status --porcelain")
    assert done.files_changed == ["a", "lib/f"] and not done.findings
    assert git(repo / "lib", "status", "--porcelain") == ""


def test_a_repository_with_a_long_history_borrows_its_objects(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "r", {f"f{number}": f"{number}\n" * 200 for number in range(50)})
    for number in range(40):
        (repo / f"f{number}").write_text(f"changed {number}\n")
        git(repo, "commit", "-qam", f"commit {number}")
    git(repo, "gc", "-q")
    before = {path: path.stat().st_mtime_ns for path in (repo / ".git/objects").rglob("*")}
    done, folder = run(state, repo, "echo x > f0")
    assert done.files_changed == ["f0"]
    packed = sum(path.stat().st_size for path in (folder.git / "objects").rglob("*") if path.is_file())
    assert packed < 10_000, "nothing the repository has is stored again"
    assert {path: path.stat().st_mtime_ns for path in (repo / ".git/objects").rglob("*")} == before
