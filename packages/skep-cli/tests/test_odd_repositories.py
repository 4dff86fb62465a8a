"""Repositories as they are found: each is worked on by the same script in a plain twin, and the approved branch must be
the tree that a plain `git add -A` makes of the twin, in an overlay and in a copy; the patch must bring the original to
the worker's files by a plain `git apply`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .odd import CASES, Case, settle
from .stage import GIT, PLAIN, document, git, skep

pytestmark = pytest.mark.sandbox


def files_of(folder: Path, *, but: tuple[str, ...] = ()) -> dict[str, tuple[bool, str]]:
    """Every file and link of a tree: whether it is executable, and its content; `.git` and ignored ones apart."""
    found: dict[str, tuple[bool, str]] = {}
    for top, folders, names in os.walk(folder):
        links = [name for name in folders if Path(top, name).is_symlink()]
        folders[:] = [name for name in folders if name not in (".git", "node_modules", *links)]
        for name in (*names, *links):
            path = Path(top, name)
            relative = str(path.relative_to(folder))
            if name != ".git" and not name.endswith(".log") and relative.split("/")[0] not in but:
                link = path.is_symlink()
                content = os.readlink(path) if link else path.read_bytes().hex()
                found[relative] = (not link and bool(path.stat().st_mode & 0o100), content)
    return found


def twin_of(case: Case, name: str) -> Path:
    """Everything around the repository copied, git dirs that lie elsewhere included; the same place in it."""
    target = case.base.with_name(name)
    subprocess.run(["cp", "-a", str(case.base), str(target)], check=True)
    for pointer in [
        *target.glob("**/.git"),
        *target.glob("**/.git/worktrees/*/gitdir"),
        *target.glob("**/.git/**/config"),
    ]:
        if pointer.is_file():
            pointer.write_text(pointer.read_text().replace(str(case.base), str(target)))
    return target / case.top.relative_to(case.base)


def entries(repo: Path, treeish: str, *, but: tuple[str, ...] = ()) -> dict[str, str]:
    listing = git(repo, "ls-tree", "-r", "-z", "--full-tree", treeish)
    rows = (row.split("\t", 1) for row in listing.split("\0") if row)
    return {path: about for about, path in rows if not any(path == name or path.startswith(name + "/") for name in but)}


def worked_on(case: Case, twin: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | PLAIN
    where = twin / case.repo.relative_to(case.top)
    subprocess.run(["sh", "-c", case.script], cwd=where, env=env, check=True, capture_output=True)


@pytest.mark.parametrize("workspace", ["overlay", "copy"])
@pytest.mark.parametrize("name", CASES)
def test_an_approved_branch_is_what_git_would_have_committed(
    state: Path, tmp_path: Path, name: str, workspace: str
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    case = Case(base)
    CASES[name](case)
    settle(case.top)
    before = files_of(case.top)
    twin = twin_of(case, "twin")
    worked_on(case, twin)
    done = run(state, case, workspace)
    assert files_of(case.top) == before and not (base / "ran").exists()
    approve = skep(state, "approve", done["id"], "--force")
    assert approve.returncode == 0, approve.stderr
    assert not (base / "ran").exists()
    git(twin, "add", "-A", "--sparse") if "sparse" in name else git(twin, "add", "-A")
    expected = git(twin, "write-tree").strip()
    told = case.raw + case.foreign
    branch = f"skep/{done['id']}"
    assert entries(case.top, f"refs/heads/{branch}", but=told) == entries(twin, expected, but=told)
    for path in case.raw:
        assert path in approve.stdout, approve.stdout
        raw = subprocess.run([GIT, "cat-file", "blob", f"{branch}:{path}"], cwd=case.top, capture_output=True).stdout
        assert raw == (twin / path).read_bytes()
    assert git(case.top, "fsck", "--strict", "--no-dangling", "--connectivity-only") == ""
    patched = twin_of(case, "patched")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **PLAIN}
    but = [f"--exclude={path}" for path in case.unlike]
    words = [GIT, "apply", "--whitespace=nowarn", *but, done["patch"]]
    applied = subprocess.run(words, cwd=patched, env=env, capture_output=True, text=True, check=False)
    assert applied.returncode == 0, applied.stderr
    assert files_of(patched, but=case.unlike) == files_of(twin, but=case.unlike)


def run(state: Path, case: Case, workspace: str) -> dict[str, Any]:
    quoted = case.script.replace("'", "'\\''")
    words = ("run", str(case.repo), "t", "--worker", f"sh -c '{quoted}'", "--json", "--git", "--workspace", workspace)
    done = skep(state, *words)
    if "no overlay" in done.stderr and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    told = document(done)
    assert told["workspace"] == workspace
    return told


def test_a_bare_repository_is_refused_with_the_reason(state: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare")
    done = skep(state, "run", str(tmp_path / "bare"), "t", "--worker", "true")
    assert done.returncode == 2 and "bare repository: name a checkout" in done.stderr, done.stderr


def test_a_branch_that_is_in_the_way_is_told_before_anything_is_made(state: Path, repo: Path) -> None:
    git(repo, "branch", "skep")
    done = skep(state, "run", str(repo), "t", "--worker", "touch f", "--json", "--execution-mode", "workspace")
    refused = skep(state, "approve", document(done)["id"], "--force")
    assert refused.returncode == 1 and "has a branch named skep" in refused.stderr
    git(repo, "branch", "-m", "skep", "other")
    assert skep(state, "approve", document(done)["id"], "--force").returncode == 0
