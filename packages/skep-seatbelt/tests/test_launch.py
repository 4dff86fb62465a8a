"""The launch path, with a stand-in for sandbox-exec. What it cannot show is in test_mac.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from skep_policy.boundary import Limits
from skep_policy.disks import Disk
from skep_seatbelt import (
    BackendUnavailable,
    Ended,
    Proxy,
    Sandbox,
    Terminal,
    compile,
    first_program,
    new_tag,
    spawn,
)
from skep_seatbelt.testing import install

from .boundaries import boundary, hide, protect, root

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one: test_mac.py")


class Place(msgspec.Struct):
    """A home with a workspace and a secret, and how a worker is started there."""

    home: Path
    mode: str = "hold"

    def start(
        self, *argv: str, allow: Any = (), proxy: Proxy | None = None, limits: Any = None, **given: Any
    ) -> Sandbox:
        repo = self.home / "repo"
        one = boundary(
            roots=[root(str(repo))],
            hides=(hide(str(self.home / "secret"), "file"),),
            protects=(protect(str(repo / "kept")), protect(str(repo / "kept.txt"), "file")),
            allow=allow,
            cwd=str(repo),
            home=str(self.home),
            limits=limits or Limits(),
            env={"PATH": os.environ["PATH"], "TOKEN": "s3cret"},
        )
        tag = new_tag()
        python, shim, reads = first_program()
        path = install(self.home, self.mode)
        launch = compile(
            one,
            argv,
            tag=tag,
            python=python,
            shim=shim,
            reads=reads,
            proxy=proxy,
            terminal=given.pop("name", None),
            sandbox_exec=path,
        )
        return spawn(launch, tag=tag, folder=given.pop("folder", str(self.home / "profiles")), **given)

    def run(self, script: str, **given: Any) -> tuple[Ended, str, str]:
        out, err = self.home / "out", self.home / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr, open(os.devnull, "rb") as stdin:
            fds = {"stdin": stdin.fileno(), "stdout": stdout.fileno(), "stderr": stderr.fileno()}
            values: dict[str, Any] = {**fds, **given}
            ended = self.start("sh", "-c", script, **values).wait()
        return ended, out.read_text(), err.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "repo/kept").mkdir(parents=True)
    (tmp_path / "repo/kept.txt").write_text("as it was")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "secret").write_text("hush")
    return Place(tmp_path)


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def running(word: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and word.encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


def test_the_worker_runs_in_its_folder_with_its_environment_and_is_attested(place: Place):
    ended, out, err = place.run("pwd; echo $TOKEN; echo word >&2")
    assert (ended.exit_code, ended.limit, ended.left) == (0, None, 0)
    assert out.splitlines() == [str(place.home / "repo"), "s3cret"] and err == "word\n"
    answers = dict(ended.attestation)
    assert isinstance(answers.pop("sandboxed"), str) and isinstance(answers.pop("mach"), str)
    held = ("writes", "signals", "hidden", "protected", "network", "descriptors")
    assert answers == dict.fromkeys(held, True)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 42", 42), ("kill -TERM $$", 143), ("exit 71", 71), ("exit 65", 65)]
)
def test_exit_status_is_the_workers_also_where_sandbox_exec_uses_it(place: Place, script: str, code: int):
    assert place.run(script)[0].exit_code == code


def test_a_worker_that_cannot_be_executed(place: Place):
    plain = place.home / "repo" / "plain"
    plain.write_text("x")
    with open(os.devnull, "r+b") as null:
        fds = dict.fromkeys(("stdin", "stdout", "stderr"), null.fileno())
        for argv, code in (("no-such-command", 127), (str(plain), 126)):
            ended = place.start(argv, **fds).wait()
            assert ended.exit_code == code and ended.exec_error


def test_the_worker_has_three_descriptors_and_no_profile_stays(place: Place):
    ended, out, _ = place.run("ls /proc/self/fd | sort -n | tr '\\n' ' '")
    assert ended.exit_code == 0 and out.split()[:3] == ["0", "1", "2"] and len(out.split()) == 4
    assert not list((place.home / "profiles").iterdir())


def test_a_boundary_that_does_not_hold_never_starts_the_worker(place: Place):
    place.mode = "idle"
    with pytest.raises(BackendUnavailable, match=r"not in force: .*hidden.*protected.*writes") as caught:
        place.run("touch started")
    assert caught.value.check == "attestation"
    assert not (place.home / "repo" / "started").exists()
    assert not list(place.home.glob(".skep-*"))


@pytest.mark.parametrize(("mode", "check"), [("nested", "nested"), ("unreadable", "profile")])
def test_sandbox_execs_own_failures_are_told_apart(place: Place, mode: str, check: str):
    place.mode = mode
    with pytest.raises(BackendUnavailable) as caught:
        place.run("touch started")
    assert caught.value.check == check and "\n" not in str(caught.value)
    assert not (place.home / "repo" / "started").exists()


def test_the_proxy_is_reached_and_its_twin_is_not(place: Place):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended, out, _ = place.run("echo $HTTPS_PROXY", allow=["example.com"], proxy=Proxy(port, "t0ken"))
        assert ended.attestation["proxy"] is True and out == f"http://skep:t0ken@127.0.0.1:{port}\n"
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # so that nobody else listens there either
        port = nobody.getsockname()[1]
        with pytest.raises(BackendUnavailable, match="not in force: proxy"):
            place.run("true", allow=["example.com"], proxy=Proxy(port, "t0ken"))


def test_the_wall_limit_ends_it(place: Place):
    ended, _, _ = place.run("sleep 60", wall=0.5)
    assert ended.limit == "wall" and ended.exit_code == 137


def test_a_hanging_sandbox_exec_ends_at_the_wall_limit(place: Place):
    place.mode = "hang"
    assert place.run("true", wall=0.5)[0].limit == "wall"


def test_a_disk_with_less_left_than_is_to_be_left_ends_it(place: Place):
    path = str(place.home)
    ended, _, _ = place.run("sleep 60", disks=[Disk(path, 0, 0), Disk(path, 1 << 60, 0)])
    assert ended.limit == "disk-free" and ended.exit_code == 137
    ended, out, _ = place.run("sleep 0.5; echo on", disks=[Disk(path, 0, 0), Disk(f"{path}/absent", 1 << 60, 0)])
    assert (ended.limit, out) == (None, "on\n")


def test_limits_reach_the_worker(place: Place):
    limits = Limits(file_size=1 << 20, processes=100)
    ended, out, _ = place.run("grep -E 'Max (file size|processes)' /proc/self/limits", limits=limits, running=50)
    assert ended.exit_code == 0
    assert sorted(line.split()[-3] for line in out.splitlines()) == ["1048576", "150"]


def test_signals_are_forwarded(place: Place):
    read, write = os.pipe()
    with open(os.devnull, "r+b") as null:
        script = "trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
        sandbox = place.start("sh", "-c", script, stdin=null.fileno(), stdout=write, stderr=null.fileno())
        os.close(write)
        with os.fdopen(read, "rb") as output:
            assert output.readline() == b"ready\n"
            sandbox.signal(signal.SIGTERM)
            assert output.readline() == b"got\n"
        assert sandbox.wait().exit_code == 7


def test_children_of_the_workers_group_end_with_it(place: Place):
    word = f"61{os.getpid()}"
    assert place.run(f"sleep {word} & echo done")[1] == "done\n"
    assert eventually(lambda: not running(word))


def test_everything_ends_when_the_caller_is_killed(place: Place):
    word = f"62{os.getpid()}"
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(Path(__file__).parent.parent)!r}]
        from pathlib import Path
        from tests.test_launch import Place
        Place(Path({str(place.home)!r})).run("sleep {word}")
    """)
    caller = subprocess.Popen([sys.executable, "-c", script])
    try:
        assert eventually(lambda: running(f"sleep\0{word}"))
    finally:
        caller.kill()
        caller.wait()
    assert eventually(lambda: not running(f"sleep\0{word}"))


def test_a_worker_that_could_write_its_profile_is_not_started(place: Place):
    with pytest.raises(BackendUnavailable, match="its profile stands"):
        place.run("true", folder=str(place.home / "repo"))
    assert not list((place.home / "repo").glob("skep-*"))


def test_the_users_terminal_is_refused_and_an_own_one_works(place: Place):
    user_near, user = os.openpty()
    with pytest.raises(BackendUnavailable, match="terminal"):
        place.run("true", stdin=user)
    seen = bytearray()
    reader = threading.Thread(target=_collect, args=(user_near, seen), daemon=True)
    reader.start()
    own = Terminal()
    sandbox = place.start(
        *("sh", "-c", "tty; stty size; read word; echo got $word"),
        **dict.fromkeys(("stdin", "stdout", "stderr", "terminal"), own.worker),
        name=own.name,
    )
    own.join(user)
    os.write(user_near, b"hello\n")
    ended = sandbox.wait()
    name = own.name
    own.close()
    os.close(user)
    reader.join(60)
    assert ended.exit_code == 0 and name.encode() in seen and b"got hello" in seen, bytes(seen)


def _collect(fd: int, seen: bytearray) -> None:
    try:
        while block := os.read(fd, 4096):
            seen += block
    except OSError:
        os.close(fd)


@pytest.mark.parametrize("folder", ["no/such", "repo"], ids=["no folder", "the worker may write its profile"])
def test_a_launch_that_cannot_be_made_leaves_nothing_open(place: Place, folder: str):
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    folder = str(place.home / folder)
    with pytest.raises((FileNotFoundError, BackendUnavailable)):
        place.start("true", folder=folder, log=((), write), stdin=read, stdout=read, stderr=read)
    assert len(os.listdir("/proc/self/fd")) == before - 1  # the log's, which was the launch's to close
    assert os.read(read, 1) == b""
    os.close(read)
    assert list((place.home / "repo").glob("skep-*")) == []
