"""Runs in a real overlay: the same patch as in a copy, nothing of the user's tree written, what the user does meanwhile
told.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from skep_cli.evidence.state import Runs
from skep_cli.workspace.layer import Layer, read_upper

from .stage import document, git, make_repo, skep
from .test_interrupts import Started

FILES: dict[str, str | bytes] = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "check.sh": "python3 -c 'import calc; assert calc.add(1, 2) == 3'\n",
    ".gitignore": "__pycache__/\n.venv/\nbuild/\n*.log\n",
    "gone": "x\n" * 30,
    "moved": "y\n" * 30,
    "tool": "#!/bin/sh\n",
    "bin": bytes(range(256)) * 8,
    "becomes-folder": "z\n",
    "d/f": "f\n",
    "d/e/g": "g\n",
    "deep/a/b/c": "c\n",
    "odd/new\nline": "n\n",
    "odd/-rf": "r\n",
}
SCRIPTS = {
    "mend": "sed -i s/a.-.b/a+b/ calc.py",
    "everything": (
        "rm gone; mkdir e; mv moved e/moved; chmod +x tool; ln -s tool link; printf x >> bin; rm becomes-folder;"
        "mkdir becomes-folder; echo q > becomes-folder/x; rm -r d; echo now a file > d; : > empty"
    ),
    "a folder made anew": "rm -r deep; mkdir -p deep/a; echo other > deep/a/new",
    "a folder moved": "mv deep shallow; mv odd even",
    "a folder replaced by a link": "rm -r d; ln -s deep d",
    "a file by a link and back": "rm tool; ln -s calc.py tool; rm tool; cp calc.py tool",
    "touched but the same": "touch calc.py; cat gone > g; mv g gone; chmod 600 bin",
    "ignored": "mkdir -p build .venv/x sub; for f in build/o .venv/x/y sub/a.log sub/t; do echo x > $f; done",
    "rules planted": (
        "echo '*' > .gitignore; mkdir s; echo '*' > s/.gitignore; echo x > s/evil; echo '*' >> .git/info/exclude;"
        "echo x > n"
    ),
    "uncommitted work": "cat wip; echo more >> wip; rm staged; echo w >> d/f; rm -r untracked",
    "closed": "mkdir c; echo x > c/f; chmod 0 c/f c; chmod 0 d",
    "special": "mkfifo p; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'; echo x > f",
    "a repository inside": "git init -q inner; echo x > inner/f; cp -r .git copy-of-git; echo x > odd/new",
    "its own git": "git add -A; git -c user.name=w -c user.email=w@x commit -qm w; git gc -q; echo x > after",
    "renamed by git": "git mv calc.py calculator.py; git rm -q gone",
}


def stage(tmp_path: Path) -> Path:
    repo = make_repo(tmp_path / "repo", FILES)
    (repo / "wip").write_text("mine\n")
    (repo / "staged").write_text("mine\n")
    git(repo, "add", "staged")
    (repo / "d/f").write_text("f changed\n")
    (repo / "untracked").mkdir()
    (repo / "untracked/u").write_text("u\n")
    (repo / ".venv/bin").mkdir(parents=True)
    (repo / ".venv/bin/tool").write_text("tool\n")
    time.sleep(0.02)
    return repo


def run(state: Path, repo: Path, script: str, *flags: str, workspace: str = "overlay") -> dict[str, Any]:
    done = skep(
        state,
        "run",
        str(repo),
        "t",
        "--worker",
        f"sh -c '{_quoted(script)}'",
        "--json",
        "--workspace",
        workspace,
        *flags,
    )
    if "no overlay" in done.stderr and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    return {**document(done), "err": done.stderr}


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")


def picture(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Every file of a tree, its git folder included: mode, time, content."""
    found: dict[str, tuple[int, int, str]] = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top, name)
            info = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
            found[str(path.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, content)
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_overlay_and_a_copy_give_the_same_patch_and_nothing_of_the_tree_is_written(
    state: Path, tmp_path: Path, name: str
) -> None:
    repo = stage(tmp_path)
    before = picture(repo)
    over = run(state, repo, SCRIPTS[name], "--git")
    assert over["workspace"] == "overlay" and over["layers"]["overlay"] is True
    assert picture(repo) == before
    copy = run(state, repo, SCRIPTS[name], "--git", workspace="copy")
    assert copy["workspace"] == "copy" and copy["layers"]["overlay"] is False
    assert over["files_changed"] == copy["files_changed"], over["findings"]
    texts = [Path(done["patch"]).read_bytes() if done["patch"] else b"" for done in (over, copy)]
    assert texts[0] == texts[1]
    assert picture(repo) == before
    assert os.listdir(state / "skep/runs") and not list((state / "skep/runs").glob("*/workspace"))


def test_an_approved_branch_has_the_uncommitted_work_and_the_patch(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)
    done = run(state, repo, "sed -i s/a.-.b/a+b/ calc.py; rm gone", "--verify", "sh check.sh")
    assert done["verification"]["outcome"] == "passed", done["err"]
    assert skep(state, "approve", done["id"]).returncode == 0
    branch = f"skep/{done['id']}"
    assert git(repo, "show", f"{branch}:calc.py") == "def add(a, b):\n    return a+b\n"
    assert git(repo, "diff", "--name-only", f"{branch}~1", branch).split() == ["calc.py", "gone"]
    assert set(git(repo, "diff", "--name-only", "HEAD", f"{branch}~1").split()) == {
        "d/f",
        "staged",
        "untracked/u",
        "wip",
    }
    assert skep(state, "audit", "verify", done["id"]).returncode == 0


def test_a_verification_sees_the_patch_on_the_users_tree_and_nothing_else_of_the_worker(
    state: Path, tmp_path: Path
) -> None:
    repo = stage(tmp_path)
    script = (
        "echo x > .venv/bin/tool; rm -r odd d; echo x > d; mkdir n; echo x > n/f; ln -s calc.py l; echo x > build.log"
    )
    check = (
        "grep -q tool .venv/bin/tool && test ! -e odd && test -f d && test -f n/f && test -L l &&"
        " test ! -e build.log && test -f untracked/u && test -d .git && touch by-verify"
    )
    done = run(state, repo, script, "--verify", f"sh -c '{check}'")
    assert done["verification"]["outcome"] == "passed", done["err"]
    assert not (repo / "by-verify").exists() and (repo / "odd").exists()


def meanwhile(
    state: Path, repo: Path, script: str, act: Any, *flags: str, workspace: str = "overlay"
) -> dict[str, Any]:
    """A run whose worker waits until `act` has been done to the user's tree."""
    go, begun = state / "results/go", state / "results/begun"
    go.parent.mkdir(exist_ok=True)

    def acting() -> None:
        deadline = time.monotonic() + 120
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        act()
        go.touch()

    thread = threading.Thread(target=acting)
    thread.start()
    script = f': > "$SKEP_RESULTS/begun"; while ! test -e "$SKEP_RESULTS/go"; do sleep 0.02; done; {script}'
    try:
        return run(state, repo, script, "--results", str(go.parent), *flags, workspace=workspace)
    finally:
        thread.join()


def test_what_the_user_does_meanwhile_is_no_part_of_the_patch_and_is_told(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)

    def act() -> None:
        (repo / "moved").write_text("by the user\n")
        (repo / "wip").write_text("by the user\n")
        (repo / "brand-new").write_text("by the user\n")
        (repo / "tool").unlink()

    check = "grep -q y moved && grep -q mine wip && test ! -e brand-new && test -e tool && grep -q a+b calc.py"
    done = meanwhile(state, repo, "sed -i s/a.-.b/a+b/ calc.py", act, "--verify", f"sh -c '{check}'")
    assert done["files_changed"] == ["calc.py"]
    moved = {finding["path"] for finding in done["findings"] if finding["kind"] == "moved"}
    assert moved == {"moved", "wip", "brand-new", "tool"}
    assert done["verification"]["outcome"] == "passed", done["err"]
    assert skep(state, "approve", done["id"]).returncode == 0
    branch = f"skep/{done['id']}"
    assert git(repo, "show", f"{branch}:moved") == "y\n" * 30 and git(repo, "show", f"{branch}:wip") == "mine\n"
    assert "brand-new" not in git(repo, "ls-tree", "-r", branch) and "\ttool" in git(repo, "ls-tree", "-r", branch)
    assert (repo / "wip").read_text() == "by the user\n"


def test_a_file_both_changed_and_a_commit_of_the_users_are_told(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)

    def act() -> None:
        (repo / "moved").write_text("by the user\n")
        git(repo, "commit", "-qam", "meanwhile")

    done = meanwhile(state, repo, "echo by the worker > moved", act)
    told = {finding["path"]: finding["detail"] for finding in done["findings"] if finding["kind"] == "moved"}
    assert "you changed it while the worker did" in told["moved"] and "HEAD" in told
    text = Path(done["patch"]).read_text()
    assert done["files_changed"] == ["moved"] and "+by the worker" in text and "by the user" not in text


def test_a_commit_of_the_users_is_told_in_a_copy_too(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)
    done = meanwhile(
        *(state, repo, "echo by the worker > moved", lambda: git(repo, "commit", "-qm", "meanwhile", "--allow-empty")),
        workspace="copy",
    )
    assert [finding["path"] for finding in done["findings"] if finding["kind"] == "moved"] == ["HEAD"]
    assert done["files_changed"] == ["moved"]


def test_a_linked_worktree_and_a_submodule_can_be_committed_in_and_nothing_is_written(
    state: Path, tmp_path: Path
) -> None:
    main = make_repo(tmp_path / "main", FILES)
    git(main, "worktree", "add", "-q", str(tmp_path / "linked"), "-b", "side")
    inner = make_repo(tmp_path / "inner", {"i": "i\n"})
    git(main, "submodule", "--quiet", "add", str(inner), "sub")
    git(main, "commit", "-qm", "sub")
    commit = (
        "echo n > n; git add n && git -c user.name=w -c user.email=w@x commit -qm w && git log --oneline | wc -l > l"
    )
    for folder in (tmp_path / "linked", main / "sub", main):
        before = picture(main)
        done = run(state, folder, commit)
        assert done["workspace"] == "overlay" and done["files_changed"] == ["l", "n"], (folder, done["findings"])
        assert done["exit_code"] == 0
        assert picture(main) == before
    done = run(state, main, "echo x > sub/new; echo x > i")
    assert done["files_changed"] == ["i", "sub/new"]
    assert skep(state, "approve", done["id"], "--force").returncode == 0
    assert git(main, "diff", "--name-only", "main", f"skep/{done['id']}").split() == ["i"]


def test_line_endings_sparse_checkouts_and_no_commit_at_all(state: Path, tmp_path: Path) -> None:
    repo = make_repo(
        tmp_path / "crlf", {"a.txt": "one\ntwo\n", "b.txt": "b\n", ".gitattributes": "*.txt text eol=crlf\n"}
    )
    git(repo, "rm", "--cached", "-qr", ".")
    git(repo, "reset", "-q", "--hard")
    for name in ("a.txt", "b.txt"):
        (repo / name).unlink()
    git(repo, "checkout", "--", ".")
    assert (repo / "a.txt").read_bytes() == b"one\r\ntwo\r\n"
    time.sleep(0.02)
    os.utime(repo / ".git/index")  # what is as young as the index itself is not taken to be known
    done = run(state, repo, 'printf "three\\r\\n" >> a.txt')
    assert done["files_changed"] == ["a.txt"] and Path(done["patch"]).read_bytes().count(b"\n+") == 2
    assert skep(state, "approve", done["id"], "--force").returncode == 0
    assert git(repo, "show", f"skep/{done['id']}:a.txt") == "one\ntwo\nthree\n"
    sparse = make_repo(tmp_path / "sparse", {"in/a": "a\n", "out/b": "b\n"})
    git(sparse, "sparse-checkout", "set", "in")
    done = run(state, sparse, "echo x > in/a")
    assert done["files_changed"] == ["in/a"]
    assert skep(state, "approve", done["id"], "--force").returncode == 0
    assert "out/b" in git(sparse, "ls-tree", "-r", f"skep/{done['id']}")
    empty = make_repo(tmp_path / "empty")
    (empty / "f").write_text("f\n")
    time.sleep(0.02)
    assert run(state, empty, "echo g > f; echo n > n")["files_changed"] == ["f", "n"]
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    (plain / "sub/f").write_text("f\n")
    time.sleep(0.02)
    done = run(state, plain, "rm -r sub; echo n > n")
    assert done["files_changed"] == ["n", "sub/f"] and "-f" in Path(done["patch"]).read_text()


def test_protected_and_hidden_files_stay_so_in_an_overlay(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", {"a/deploy/f": "f\n", "a/secret/s": "s\n", "a/open": "o\n", "skep.toml": ""})
    script = (
        'echo x > a/open && ! sh -c "echo x > a/deploy/f" 2>/dev/null && ! cat a/secret/s 2>/dev/null &&'
        '! mv a b 2>/dev/null; ! rm -r a/deploy 2>/dev/null; rm -rf b; ! sh -c "echo x > skep.toml" 2>/dev/null; ls -R'
    )
    done = run(state, repo, script, "--protect", f"{repo}/a/deploy", "--hide", f"{repo}/a/secret")
    assert not any("deploy" in path or "secret" in path or "toml" in path for path in done["files_changed"]), done
    assert (repo / "a/deploy/f").read_text() == "f\n"


def test_where_nothing_can_be_laid_over_it_a_copy_is_made_and_the_record_says_why(state: Path, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", FILES)
    real = shutil.which("bwrap")
    if real is None:
        pytest.skip("no bwrap on PATH")
    fake = tmp_path / "bin/bwrap"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\ncase "$*" in *--overlay*) echo "bwrap: no such mount" >&2; exit 1;; esac\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    env = {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    words = ("run", str(repo), "t", "--worker", "sh -c 'echo x > f'", "--json")
    done = skep(state, *words, env=env)
    assert done.returncode == 0, done.stderr
    told = document(done)
    assert told["workspace"] == "copy" and "says: bwrap: no such mount" in told["layers"]["overlay"]
    assert f"a copy, as nothing can be laid over the tree here: {told['layers']['overlay']}" in done.stderr
    refused = skep(state, *words, "--workspace", "overlay", env=env)
    assert refused.returncode == 125 and "--workspace copy works everywhere" in refused.stderr


def test_an_upper_layer_is_read_without_following_anything_in_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s").write_text("secret\n")
    upper = tmp_path / "upper"
    (upper / "d").mkdir(parents=True)
    (upper / "l").symlink_to(secret)
    (upper / "f").write_text("f\n")
    for name, value in (("redirect", b"/secret"), ("metacopy", b""), ("whiteout", b"y"), ("origin", b"x")):
        try:
            os.setxattr(upper / "d", f"user.overlay.{name}", value)
            os.setxattr(upper / "f", f"user.overlay.{name}", value)
        except OSError:
            pytest.skip("no user attributes on this file system")
    os.mknod(upper / "w", 0o020600, os.makedev(0, 0))
    with Layer(str(upper), ours=True) as layer:
        found = read_upper(layer)
        assert sorted(found.files) == ["f", "l"] and found.gone == ["w"] and found.folders == ["d"] and not found.opaque
        assert layer.stat("l/s") is None
        with pytest.raises(NotADirectoryError):
            layer.source("l/s", 0o100644, "sha1")
        assert b"".join(layer.source("f", 0o100644, "sha1").blocks()) == b"f\n"


def test_a_worker_can_forge_neither_whiteouts_nor_marks(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)
    attempts = (
        "os.mknod('w', 0o020600, 0)",
        "os.mkdir('o') or os.setxattr('o', 'user.overlay.opaque', b'y')",
        "os.setxattr('d', 'user.overlay.opaque', b'y')",
        "os.setxattr('d', 'user.overlay.redirect', b'/deep')",
    )
    script = "import os\n" + "".join(f"try: {act}\nexcept OSError as e: print(e)\n" for act in attempts)
    script += "print(sorted(os.listdir('d')))"
    (repo / "forge.py").write_text(script)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "forge")
    time.sleep(0.02)
    done = run(state, repo, "python3 forge.py; echo x > seen")
    assert done["files_changed"] == ["seen"]
    assert "['e', 'f']" in Path(done["audit"], "worker.log").read_text()


def test_no_state_is_left_when_an_overlay_run_is_killed(state: Path, tmp_path: Path) -> None:
    repo = stage(tmp_path)
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(state)}
    words = [
        sys.executable,
        "-m",
        "skep_cli",
        "run",
        str(repo),
        "t",
        "--worker",
        "sh -c 'echo x > f; echo up; sleep 60'",
    ]
    process = subprocess.Popen(
        [*words, "--workspace", "overlay"], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    said = b""
    while b"up\n" not in said:
        block = process.stdout.readline()
        if not block:
            process.wait()
            assert not os.environ.get("SKEP_SANDBOX_MUST_WORK"), said.decode()
            pytest.skip(said.decode())
        said += block
    process.kill()
    process.wait()
    process.stdout.close()
    done = run(state, repo, "true")
    assert done["state"] == "completed"
    assert not list((state / "skep/runs").glob("*/workspace"))
    assert len(Runs(state / "skep").all()) == 2


@pytest.mark.parametrize("workspace", ["overlay", "copy"])
def test_ctrl_c_once_asks_the_worker_and_takes_its_patch_and_twice_ends_it(
    state: Path, tmp_path: Path, workspace: str
) -> None:
    repo = stage(tmp_path)
    once = 'trap "echo stopped > left; exit 7" INT; echo x > f; echo up; while :; do sleep 0.1; done'
    told, said = interrupted(state, repo, once, workspace, times=1)
    assert told["files_changed"] == ["f", "left"] and (told["state"], told["exit_code"]) == ("failed", 7), said
    assert "once more ends it" in said
    deaf = "trap '' INT; echo x > f; echo up; while :; do sleep 0.1; done"
    told, said = interrupted(state, repo, deaf, workspace, times=2)
    assert told["files_changed"] == ["f"] and (told["state"], told["exit_code"]) == ("failed", 137), said


def interrupted(state: Path, repo: Path, script: str, workspace: str, *, times: int) -> tuple[dict[str, Any], str]:
    started = Started(state, repo, script, workspace)
    started.until("up\n")
    started.send(signal.SIGINT)
    if times > 1:
        started.until("once more ends it")
        started.send(signal.SIGINT)
    _, told = started.end()
    assert told is not None, started.said.decode()
    return told, started.said.decode()


@pytest.mark.sandbox
def test_a_worker_that_cannot_be_executed_is_a_failed_run_that_says_why(state: Path, repo: Path) -> None:
    done = skep(state, "run", str(repo), "x", "--worker", "./nope.sh", "--workspace", "overlay")
    assert done.returncode == 1
    assert (
        "could not be executed: ./nope.sh: No such file or directory" in done.stderr
        and "not looked at" not in done.stderr
    )
