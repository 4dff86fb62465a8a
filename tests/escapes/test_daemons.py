"""The worker speaks to no daemon of the host: sockets, processes, shared memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .worker import PYTHON, Worker

pytestmark = pytest.mark.sandbox


@pytest.fixture(params=["path", "abstract"])
def daemon(request: pytest.FixtureRequest, worker: Worker) -> Iterator[str]:
    """The address of a listening Unix socket of the host, as Python writes it."""
    name = str(worker.outside / "d.sock") if request.param == "path" else f"\0skep-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        yield name


@pytest.mark.guarantee("daemon-sockets")
def test_a_socket_of_the_host_cannot_be_connected_to_unless_listed(worker: Worker, daemon: str) -> None:
    connect = f"socket.socket(socket.AF_UNIX).connect({daemon!r})"
    assert worker.unconfined(connect) == "ok"
    assert worker.attempt(connect) == ("ECONNREFUSED" if daemon.startswith("\0") else worker.unreachable)
    if not daemon.startswith("\0"):
        assert worker.attempt(connect, "--socket", daemon) == "ok"


@pytest.mark.guarantee("daemon-sockets")
def test_a_closed_folder_that_the_worker_could_open_hides_no_socket(worker: Worker) -> None:
    folder = worker.workspace / "closed"
    folder.mkdir()
    body = f"os.chmod({str(folder)!r}, 0o700); socket.socket(socket.AF_UNIX).connect({str(folder / 'd.sock')!r})"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "d.sock"))
        server.listen()
        folder.chmod(0)
        assert worker.attempt(body) == "EROFS"
        assert worker.unconfined(body) == "ok"


@pytest.mark.guarantee("daemon-sockets")
def test_a_socket_is_covered_by_every_name_it_has_in_the_workspace(worker: Worker) -> None:
    (worker.workspace / "deep").mkdir()
    connect = "socket.socket(socket.AF_UNIX).connect('deep/other')"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(worker.workspace / "d.sock"))
        server.listen()
        os.link(worker.workspace / "d.sock", worker.workspace / "deep/other")
        assert worker.unconfined(connect) == "ok"
        assert worker.attempt(connect) == "ECONNREFUSED"


@pytest.mark.guarantee("daemon-sockets")
def test_a_datagram_socket_pair_cannot_be_turned_on_the_host(worker: Worker) -> None:
    path = str(worker.outside / "d.sock")
    body = f"a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect({path!r}); a.send(b'x')"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        server.setblocking(False)
        assert worker.attempt(body) == worker.unreachable
        with pytest.raises(BlockingIOError):
            server.recv(1)
        assert worker.unconfined(body) == "ok"
        assert server.recv(1) == b"x"


@pytest.mark.guarantee("daemon-sockets")
def test_sockets_made_inside_work(worker: Worker) -> None:
    body = """
a = socket.socket(socket.AF_UNIX); a.bind('s'); a.listen()
b = socket.socket(socket.AF_UNIX); b.connect('s')
"""
    assert worker.attempt(body) == "ok"


@pytest.mark.guarantee("daemon-processes")
def test_processes_of_the_host_are_out_of_sight_and_reach(worker: Worker) -> None:
    with subprocess.Popen(["sleep", "1000"]) as victim:
        try:
            assert worker.attempt(f"os.kill({victim.pid}, {signal.SIGKILL:d})") == "ESRCH"
            assert worker.attempt(f"os.kill(-1, {signal.SIGKILL:d})") in ("ok", "ESRCH")
            assert victim.poll() is None
            seen = worker.sh("cat /proc/[0-9]*/comm | sort -u")
            assert "cat" in seen.split() and "sleep" not in seen.split()
            assert worker.unconfined(f"os.kill({victim.pid}, {signal.SIGTERM:d})") == "ok"
        finally:
            victim.kill()


@pytest.mark.guarantee("daemon-memory")
def test_posix_shared_memory_of_the_host_is_not_there(worker: Worker) -> None:
    shared = Path(f"/dev/shm/skep-test-{os.getpid()}")
    shared.write_text("hush")
    try:
        body = f"open({str(shared)!r}).read()"
        assert worker.unconfined(body) == "ok"
        assert worker.attempt(body) == "ENOENT"
        assert worker.attempt("open('/dev/shm/own', 'w').close()") == "ok"
    finally:
        shared.unlink()


SEGMENT = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
print(libc.shmget(int(sys.argv[1]), 4096, int(sys.argv[2])))
"""


@pytest.mark.guarantee("daemon-memory")
def test_system_v_shared_memory_of_the_host_is_not_there(worker: Worker) -> None:
    key, create, find = str(0x5EE0000 + os.getpid()), str(0o1600), "0"
    made = subprocess.run(
        [PYTHON, "-c", SEGMENT, key, create], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        found = subprocess.run([PYTHON, "-c", SEGMENT, key, find], capture_output=True, text=True, check=True)
        assert made != "-1" and found.stdout.strip() == made
        assert worker.run(PYTHON, "-c", SEGMENT, key, find).stdout.strip() == "-1"
        assert worker.run(PYTHON, "-c", SEGMENT, key, create).stdout.strip() != "-1"
    finally:
        subprocess.run(["ipcrm", "-m", made], check=True)


@pytest.mark.guarantee("daemon-sockets")
@pytest.mark.parametrize("how", ["through a descriptor", "moved since"])
def test_a_socket_whose_name_tells_nothing_is_covered(worker: Worker, how: str) -> None:
    folder = worker.outside / "own"
    folder.mkdir()
    held = os.open(folder, os.O_PATH)
    connect = f"socket.socket(socket.AF_UNIX).connect({str(folder / 's')!r})"
    try:
        with socket.socket(socket.AF_UNIX) as server:
            if how == "moved since":
                server.bind(str(worker.home / "bound"))
                (worker.home / "bound").rename(folder / "s")
            else:
                server.bind(f"/proc/self/fd/{held}/s")
            server.listen()
            assert worker.unconfined(connect) == "ok"
            assert worker.attempt(connect) == worker.unreachable
            assert worker.attempt(connect, "--socket", str(folder / "s")) == "ok"
    finally:
        os.close(held)
