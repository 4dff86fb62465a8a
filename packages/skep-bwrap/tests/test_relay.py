"""Files, sockets and folders as standard descriptors: the bytes arrive, the file does not."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest
from skep_bwrap import run
from skep_bwrap.relay import Stdio, passes
from skep_policy.boundary import Limits

from .box import Box, descriptors, eventually

pytestmark = pytest.mark.sandbox
BIG = 5_000_000


def test_a_big_file_goes_in_and_out_whole(either: Box) -> None:
    data = os.urandom(BIG)
    source, sink = either.out / "in", either.out / "out"
    source.write_bytes(data)
    with source.open("rb") as stdin, sink.open("wb") as stdout:
        outcome = run(
            either.boundary(), ["cat"], bwrap=either.bwrap, stdin=stdin.fileno(), stdout=stdout.fileno(), stderr=2
        )
    assert outcome.exit_code == 0 and sink.read_bytes() == data


def test_a_file_opened_for_appending_is_appended_to(box: Box) -> None:
    path = box.out / "log"
    path.write_text("before\n")
    with path.open("ab") as log:
        assert box.run(["echo", "after"], how={"stdout": log.fileno()}).code == 0
    assert path.read_text() == "before\nafter\n"


def test_one_file_for_both_outputs_keeps_their_order(box: Box) -> None:
    path = box.out / "log"
    script = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; done"
    with path.open("wb") as log:
        box.sh(script, how={"stdout": log.fileno(), "stderr": log.fileno()})
    assert path.read_text().split() == [f"{kind}{number}" for number in range(1, 6) for kind in ("out", "err")]


def test_the_worker_holds_pipes_and_not_the_files(box: Box) -> None:
    result = box.sh("ls -l /proc/$$/fd; chmod 777 /proc/self/fd/0 /proc/self/fd/1", stdin=b"x")
    assert str(box.out) not in result.out and result.out.count("pipe:") == 3


def test_a_file_keeps_its_mode_whatever_the_worker_does(either: Box) -> None:
    secret = either.out / "secret"
    secret.write_text("hush\n")
    secret.chmod(0o600)
    with secret.open("rb") as stdin:
        attempt = "import os; os.fchmod(0, 0o777); os.ftruncate(0, 0)"
        assert either.python(attempt, how={"stdin": stdin.fileno()}).code != 0
        stdin.seek(0)
        assert either.run(["cat"], how={"stdin": stdin.fileno()}).out == "hush\n"
        assert secret.stat().st_mode & 0o777 == 0o600
        os.fchmod(stdin.fileno(), 0o640)  # as an unconfined holder of the same descriptor may
    assert secret.stat().st_mode & 0o777 == 0o640


def test_a_folder_is_nothing_at_all(box: Box) -> None:
    fd = os.open(box.out, os.O_RDONLY)
    try:
        attempt = "import os; os.open('escaped', os.O_CREAT | os.O_WRONLY, dir_fd=0)"
        assert "NotADirectoryError" in box.python(attempt, how={"stdin": fd}).err
        os.close(os.open("control", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    finally:
        os.close(fd)
    assert [path.name for path in box.out.iterdir()] == ["control"]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_sockets_are_relayed(box: Box, kind: int) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with ours, theirs:
        ours.send(b"hello\n")
        if kind == socket.SOCK_STREAM:
            ours.shutdown(socket.SHUT_WR)
        result = box.sh("head -n 1; test -S /dev/stdin || echo no socket", how={"stdin": theirs.fileno()})
        assert result.out == "hello\nno socket\n"


def test_a_socket_that_says_nothing_more_holds_neither_the_end_nor_a_descriptor(box: Box) -> None:
    before, threads = descriptors(), threading.active_count()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert box.run(["true"], how={"stdin": theirs.fileno()}).code == 0
    assert descriptors() == before and threading.active_count() == threads


def test_non_blocking_sockets_carry_everything_both_ways(box: Box) -> None:
    data, got = os.urandom(BIG), bytearray()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def read() -> None:
        while block := ours.recv(65536):
            got.extend(block)

    def write() -> None:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    with theirs:
        assert box.run(["cat"], how={"stdin": theirs.fileno(), "stdout": theirs.fileno()}).code == 0
        theirs.shutdown(socket.SHUT_WR)
        for thread in threads:
            thread.join()
    ours.close()
    assert bytes(got) == data


def test_a_named_pipe_is_relayed(box: Box) -> None:
    path = box.out / "fifo"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    try:
        os.write(fd, b"through\n")
        assert box.sh("head -n 1", how={"stdin": fd}).out == "through\n"
        assert passes(fd) == "relayed"
    finally:
        os.close(fd)


def test_a_reader_that_leaves_is_a_broken_pipe(box: Box) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        assert box.run(["yes"], how={"stdout": write}).code == 128 + 13
    finally:
        os.close(write)


def test_null_is_the_sandboxs_own(either: Box) -> None:
    mode = os.stat("/dev/null").st_mode
    null = os.open("/dev/null", os.O_RDWR)
    try:
        attempt = "import os; print(os.read(0, 1)); os.write(2, b'x'); os.fchmod(2, 0o600)"
        result = either.python(attempt, how={"stdin": null, "stderr": null})
        assert result.out == "b''\n" and result.code != 0
    finally:
        os.close(null)
    assert os.stat("/dev/null").st_mode == mode


def test_a_background_child_that_keeps_the_output_open_does_not_hold_the_end(box: Box) -> None:
    result = box.sh("sleep 1000 & echo done")
    assert result.out == "done\n"


def test_the_file_size_limit_holds_for_relayed_output_too(box: Box) -> None:
    result = box.run(["yes"], limits=Limits(file_size=100_000, wall=60))
    assert len(result.out) == 100_000 and result.outcome.limit == "file-size"
    assert box.run(["echo", "x"], limits=Limits(file_size=100_000)).outcome.limit is None
    full = box.sh("printf 1234; exit 3", limits=Limits(file_size=4))
    assert (full.out, full.code, full.outcome.limit) == ("1234", 3, None), "as much as the limit is not more"


def test_a_full_disk_is_an_error_to_the_worker_and_no_hang(box: Box) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        assert box.run(["yes"], how={"stdout": fd}).code != 0
    finally:
        os.close(fd)


def test_relays_that_were_never_started_leave_nothing(tmp_path: Path) -> None:
    before = descriptors()
    with (tmp_path / "f").open("w+b") as file:
        stdio = Stdio(file.fileno(), file.fileno(), file.fileno())
        assert stdio.stdout == stdio.stderr
        stdio.close()
        assert descriptors() == before + 1
    assert eventually(lambda: descriptors() == before)


@pytest.mark.parametrize("name", ["dup", "pipe", "eventfd"])
@pytest.mark.parametrize("left", [0, 1, 2])
def test_descriptors_that_run_out_halfway_leave_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, left: int
) -> None:
    given = getattr(os, name)
    calls = iter(range(left))

    def scarce(*args: int) -> object:
        if next(calls, None) is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return given(*args)

    files = [(tmp_path / str(number)).open("w+b") for number in range(3)]
    before = descriptors()
    monkeypatch.setattr(os, name, scarce)
    with pytest.raises(OSError, match="Too many open files"):
        Stdio(*(file.fileno() for file in files))
    assert descriptors() == before
    for file in files:
        file.close()
