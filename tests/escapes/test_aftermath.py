"""What skep itself does on the host with what a worker left: nothing of it leads skep, or git of the host, anywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .worker import Worker

pytestmark = pytest.mark.sandbox

EVIL = r"""
plant() { mkdir -p $1/.git/objects $1/.git/refs; echo 'ref: refs/heads/main' > $1/.git/HEAD
  printf '[core]\nrepositoryformatversion = 0\nfsmonitor = "touch %s/ran; false"\n' "$HOME" > $1/.git/config; }
"""
PLACES = {
    "a folder": "plant lib",
    "below many folders": "seq 10100 | xargs mkdir; plant 1/lib",
    "with modes against it": "plant lib; chmod 0555 lib/.git; chmod 0311 lib",
    "beside a repository that is none": """
        plant lib; mv lib/.git/* lib; printf 'bare = false\\nworktree = .\\n' >> lib/config""",
    "with its objects elsewhere": """
        plant lib; mkdir lib/x; cd lib; mv .git/objects .git/refs .git/config x; mv .git/HEAD .; rmdir .git
        echo x > commondir; printf '[extensions]\\nworktreeConfig = true\\n' >> x/config
        sed -i '1i [core]\\nrepositoryformatversion = 1' x/config
        printf '[core]\\nbare = false\\nworktree = .\\n' > config.worktree""",
}


@pytest.mark.guarantee("write-protected")
@pytest.mark.parametrize("place", PLACES)
def test_git_of_the_host_runs_nothing_of_a_repository_a_worker_made(worker: Worker, place: str) -> None:
    script = EVIL + PLACES[place]
    look = "for folder in . lib 1/lib; do (cd $folder 2>/dev/null && git status); done"
    ran = worker.home / "ran"
    worker.sh(script)
    subprocess.run(["sh", "-c", look], cwd=worker.workspace, env=worker.environ(), capture_output=True, check=False)
    assert not ran.exists()
    subprocess.run(["chmod", "-R", "u+rwx", str(worker.workspace)], check=True)
    subprocess.run(["sh", "-c", f"rm -rf ./* .git*; {script}"], cwd=worker.workspace, env=worker.environ(), check=True)
    subprocess.run(["sh", "-c", look], cwd=worker.workspace, env=worker.environ(), capture_output=True, check=False)
    assert ran.exists()
    subprocess.run(["chmod", "-R", "u+rwx", str(worker.workspace)], check=True)


@pytest.mark.guarantee("write-protected")
def test_git_status_of_the_host_enters_no_submodule_a_worker_made_up(worker: Worker) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *words], cwd=worker.workspace, env=worker.environ(), check=True)
    script = (
        EVIL
        + r"""
        mkdir -p node_modules/x; cd node_modules/x; git init -q
        git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x
        oid=$(git rev-parse HEAD); git config core.fsmonitor "touch $HOME/ran; false"
        cd ../..; git update-index --add --cacheinfo 160000,$oid,node_modules/x"""
    )
    ran = worker.home / "ran"
    worker.sh(script, "--git")
    subprocess.run(["git", "status"], cwd=worker.workspace, env=worker.environ(), capture_output=True, check=False)
    assert not ran.exists()
    subprocess.run(["rm", "-rf", "node_modules"], cwd=worker.workspace, check=True)
    subprocess.run(["sh", "-c", script], cwd=worker.workspace, env=worker.environ(), check=True)
    subprocess.run(["git", "status"], cwd=worker.workspace, env=worker.environ(), capture_output=True, check=False)
    assert ran.exists()


@pytest.mark.guarantee("write-links")
def test_skeps_own_folder_is_not_the_workers_to_make(worker: Worker) -> None:
    script = f"mkdir -p .local/state; ln -s {worker.outside} .local/state/skep; mkdir -p .ssh; echo x > .ssh/config"
    argv = worker.argv("sh", "-c", script)
    subprocess.run(argv, cwd=worker.home, env=worker.environ(), capture_output=True, check=False, timeout=60)
    state = worker.home / ".local/state/skep"
    assert list(worker.outside.iterdir()) == [] and state.is_dir() and not state.is_symlink()
    assert not Path(worker.home / ".ssh").exists()
    subprocess.run(["rm", "-rf", str(state)], check=True)
    subprocess.run(["sh", "-c", script], cwd=worker.home, env=worker.environ(), check=True)
    assert state.is_symlink()
