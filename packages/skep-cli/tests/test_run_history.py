"""`skep run` in the sandbox on a repository with a past, by a worker that uses git as people do."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .history import COMMITS, make_history, noise
from .stage import document, git, skep

pytestmark = pytest.mark.sandbox

WORKER = """\
set -eu
cd "$(git rev-parse --show-toplevel)"
{
    echo "commits $(git rev-list --count --all)"
    echo "merges $(git rev-list --count --merges main)"
    echo "tags $(git tag | wc -l)"
    echo "branches $(git branch --format='%(refname)' | wc -l)"
    echo "authors $(git shortlog -sn main | wc -l)"
    echo "blame $(git blame --line-porcelain src/module_3.py | grep -c '^summary')"
    echo "follow $(git log --follow --format=%h docs/README.md | wc -l)"
    echo "graph $(git log --graph --oneline --all | grep -c '\\*')"
    echo "release $(git describe --tags --abbrev=0 main)"
    echo "old $(git show v100:README.md)"
    echo "diff $(git diff --stat v50 v100 | tail -1)"
    echo "status $(git status --porcelain | tr '\\n' ';')"
    echo "binary $(git diff --numstat v50 main -- assets | grep -c '^-')"
    git fsck --no-progress >/dev/null && echo fsck
} > "$SKEP_RESULTS/told"

# work as people do: on a branch, in commits, and with something left uncommitted
git switch -q -c mending
printf 'def function_1():\\n    return 2\\n' >> src/module_0.py
git commit -qam 'Mend it'
head -c 5000 /dev/zero | tr '\\0' '\\377' > assets/new.bin
git add assets/new.bin && git commit -qm 'Add a picture'
git mv src/module_1.py src/renamed.py && git commit -qm 'Rename'
git stash list >/dev/null
git rm -q src/module_2.py
chmod -x tool.sh
ln -sfn docs/README.md link
echo uncommitted >> README.md
mkdir -p build __pycache__ && touch build/out x.log __pycache__/x.pyc
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder below the real home: /tmp is the worker's own."""
    base = Path(tempfile.mkdtemp(prefix=".skep-test-", dir=Path.home()))
    yield base
    subprocess.run(["chmod", "-R", "u+rwX", base], check=True)
    subprocess.run(["rm", "-rf", base], check=True)


def test_a_worker_uses_git_and_its_patch_is_what_it_changed(place: Path) -> None:
    repo = make_history(place / "repo")
    # the user's own uncommitted work is the baseline, and no part of the patch
    (repo / "src/module_5.py").write_text("mine = True\n")
    (repo / "notes.txt").write_text("not yet added\n")
    before = {name: git(repo, *name.split()) for name in ("for-each-ref", "status --porcelain --ignored", "stash list")}
    head = git(repo, "rev-parse", "HEAD")
    script = place / "worker.sh"
    script.write_text(WORKER)
    state = place / "state"
    environ = {f"GIT_{who}_{what}": "w@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    flags = [word for name in environ for word in ("--env", name)]

    done = skep(
        state,
        *("run", str(repo), "mend it", "--worker", f"sh {shlex.quote(str(script))}", "--verify", "sh check.sh"),
        *("--git", "--json", *flags),
        env=environ,
    )
    if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    run = document(done)
    assert run["state"] == "completed" and run["verification"]["outcome"] == "passed"

    told: dict[str, str] = {}
    for line in (Path(run["results"]) / "told").read_text().splitlines():
        key, _, value = line.partition(" ")
        told[key] = value
    assert int(told["commits"]) == COMMITS and int(told["graph"]) == COMMITS
    assert told["merges"] == "30" and told["branches"] == "31" and told["tags"] == "10" and told["authors"] == "4"
    assert int(told["blame"]) == len((repo / "src/module_3.py").read_text().splitlines())
    assert told["release"] == "v250" and told["old"] == "# A project with a past" and "fsck" in told
    assert told["status"] == " M src/module_5.py;?? notes.txt;" and int(told["binary"]) == 6

    assert sorted(run["files_changed"]) == [
        *("README.md", "assets/new.bin", "link"),
        *("src/module_0.py", "src/module_1.py", "src/module_2.py", "src/renamed.py", "tool.sh"),
    ]
    after = {name: git(repo, *name.split()) for name in before}
    assert after == before and git(repo, "rev-parse", "HEAD") == head, "the repository itself is as it was"

    clone = place / "clone"
    git(place, "clone", "-q", str(repo), str(clone))
    (clone / "src/module_5.py").write_text("mine = True\n")
    git(clone, "apply", "--index", "--binary", run["patch"])
    assert (clone / "assets/new.bin").read_bytes() == b"\xff" * 5000
    assert (clone / "assets/image-120.bin").read_bytes() == noise(120, 20_000)
    assert not (clone / "src/module_2.py").exists() and not (clone / "src/module_1.py").exists()
    assert (clone / "src/renamed.py").read_text() == (repo / "src/module_1.py").read_text()
    assert os.readlink(clone / "link") == "docs/README.md" and not os.access(clone / "tool.sh", os.X_OK)
    assert (clone / "README.md").read_text() == "# Moved\nuncommitted\n"

    approved = skep(state, "approve", run["id"])
    assert approved.returncode == 0, approved.stderr
    branch = f"skep/{run['id']}"
    changed = git(repo, "diff", "--name-only", "--no-renames", head.strip(), branch).splitlines()
    assert {"assets/new.bin", "src/renamed.py", "tool.sh"} <= set(changed)
    assert git(repo, "status", "--porcelain") == before["status --porcelain --ignored"]


def test_a_worker_that_may_not_commit_still_reads_the_past(place: Path) -> None:
    """The twin: without --git what git keeps is read-only, and the patch comes from the tree all the same."""
    repo = make_history(place / "repo")
    script = place / "worker.sh"
    script.write_text("set -u\ngit log --oneline | wc -l\necho y >> README.md\ngit commit -qam no && exit 9\nexit 0\n")
    done = skep(place / "state", "run", str(repo), "x", "--worker", f"sh {shlex.quote(str(script))}", "--json")
    if done.returncode == 125 and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert document(done)["files_changed"] == ["README.md"]
