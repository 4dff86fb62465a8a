"""A cover lies over a file and not over a name: that the host took one away is told, and a folder's holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .worker import Worker, eventually

pytestmark = pytest.mark.sandbox

WAIT = "touch ready; n=0; while [ ! -e go ] && [ $n -lt 3000 ]; do sleep 0.02; n=$((n+1)); done; "


def meanwhile(worker: Worker, script: str, *flags: str, replaced: Path | None) -> subprocess.CompletedProcess[str]:
    """The script inside, after a program of the host has saved a file by renaming a new one over it."""
    command = worker.argv("sh", "-c", WAIT + script, flags=flags)
    with subprocess.Popen(
        command, cwd=worker.workspace, env=worker.environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as skep:
        assert eventually((worker.workspace / "ready").exists)
        if replaced is not None:
            new = replaced.with_name("saving")
            new.write_text("new\n")
            new.rename(replaced)
        (worker.workspace / "go").touch()
        out, err = skep.communicate(timeout=60)
    return subprocess.CompletedProcess(command, skep.returncode, out, err)


@pytest.mark.guarantee("write-protected")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_protected_file_that_the_host_replaces_is_told_of(worker: Worker, replaced: bool) -> None:
    file = worker.workspace / ".envrc"
    file.write_text("old\n")
    done = meanwhile(worker, "echo worker >> .envrc", replaced=file if replaced else None)
    told = f"{file}: uncovered: a program of the host replaced it"
    assert (told in done.stderr) == replaced, done.stderr
    assert file.read_text() == ("new\nworker\n" if replaced else "old\n"), "the limit this tells of is still there"


@pytest.mark.guarantee("read-hidden")
@pytest.mark.parametrize("replaced", [True, False])
def test_a_hidden_file_that_the_host_replaces_is_told_of(worker: Worker, replaced: bool) -> None:
    file = worker.home / ".netrc"
    file.write_text("old\n")
    done = meanwhile(worker, f"cat {file}", replaced=file if replaced else None)
    assert (f"{file}: uncovered: " in done.stderr) == replaced, done.stderr
    assert done.stdout == ("new\n" if replaced else "")


@pytest.mark.guarantee("write-protected", "read-hidden")
@pytest.mark.parametrize("flag", ["--protect", "--hide"])
def test_a_file_in_a_covered_folder_stays_covered_when_the_host_replaces_it(worker: Worker, flag: str) -> None:
    file = worker.workspace / "conf/file"
    file.parent.mkdir()
    file.write_text("old\n")
    done = meanwhile(worker, "echo worker >> conf/file; cat conf/file", flag, "conf", replaced=file)
    assert file.read_text() == "new\n" and "uncovered" not in done.stderr
    assert done.stdout == ("new\n" if flag == "--protect" else "")
