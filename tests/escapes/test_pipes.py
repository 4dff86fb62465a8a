"""Named pipes of the host: a read-only mount does not stop writing to one that somebody reads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SKEP = str(Path(sys.executable).with_name("skep"))


@pytest.fixture
def base() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix=".skep-test-", dir=Path.home()))
    (base / "work").mkdir()
    yield base
    shutil.rmtree(base)


def write_from_inside(pipe: Path, workspace: Path) -> bytes:
    """What arrives at a reader of the host when a worker writes a line to the pipe."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        subprocess.run(
            [SKEP, "exec", "--", "sh", "-c", f"echo command > {pipe}"],
            cwd=workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return os.read(reader, 100)
    except BlockingIOError:
        return b""
    finally:
        os.close(reader)


@pytest.mark.sandbox
@pytest.mark.guarantee("daemon-sockets")
def test_a_pipe_that_a_process_of_the_host_reads_takes_nothing_from_a_worker(base: Path) -> None:
    pipe, link = base / "control", base / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    subprocess.run(["sh", "-c", f"echo command > {link}"], check=True)
    assert os.read(reader, 100) == b"command\n", "the control: without a boundary it arrives"
    os.close(reader)
    assert write_from_inside(pipe, base / "work") == b""
    assert write_from_inside(link, base / "work") == b""


@pytest.mark.sandbox
@pytest.mark.guarantee("daemon-sockets")
def test_a_pipe_in_the_workspace_is_the_workers_to_use(base: Path) -> None:
    pipe = base / "work/pipe"
    os.mkfifo(pipe)
    assert write_from_inside(pipe, base / "work") == b"command\n"
