"""Lives and ends of real sandboxes: statuses, signals, limits, and nothing left however anything dies."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from importlib import import_module
from pathlib import Path

import pytest
from skep_bwrap import BackendUnavailable, spawn
from skep_bwrap.descriptors import check_destination
from skep_bwrap.spawn import Sandbox
from skep_policy.boundary import Access, Limits, PathRule
from skep_policy.launch import Launch

from .box import Box, descriptors, ended_by_wall, eventually, go, own_children, parents, tagged

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("true", 0),
        ("exit 42", 42),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
        ("exit 125", 125),
        ("exit 255", 255),
    ],
)
def test_the_status_is_the_commands(either: Box, script: str, code: int) -> None:
    assert either.sh(script).code == code


def test_a_command_that_cannot_be_executed_is_126_or_127(box: Box) -> None:
    (box.ws / "plain").write_text("x")
    (box.ws / "script").write_text("exit 7\n")
    (box.ws / "script").chmod(0o755)
    absent, plain = box.run(["no-such-command"]), box.run(["./plain"])
    assert (absent.code, plain.code) == (127, 126)
    assert absent.outcome.exec_error == 2 and plain.outcome.exec_error == 13
    assert box.run(["./script"]).code == 7  # as a shell does with a file that names no interpreter
    assert box.run(["true"]).outcome.exec_error is None


def test_the_wall_limit_ends_everything(box: Box) -> None:
    tag = f"9100{os.getpid()}"
    script = f"setsid sleep {tag} & trap '' TERM; sleep {tag}"
    result = ended_by_wall(lambda wall: box.sh(script, limits=Limits(wall=wall)))
    assert result.outcome.limit == "wall" and result.code == 137
    assert not tagged(tag)


def start(box: Box, argv: list[str], **how: object) -> Sandbox:
    nothing: dict[str, object] = {"stdin": None, "stdout": None, "stderr": None}
    return spawn(box.launch(argv), **{**nothing, **how})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_a_signal_reaches_the_worker(box: Box, number: signal.Signals) -> None:
    sandbox = start(box, ["sleep", "60"])
    assert sandbox.begin()
    sandbox.signal(number)
    assert sandbox.wait().exit_code == 128 + number


def test_a_worker_may_handle_a_signal(box: Box) -> None:
    marker = box.ws / "ready"
    sandbox = start(box, ["sh", "-c", f"trap 'exit 9' TERM; touch {marker}; while :; do sleep 0.01; done"])
    assert sandbox.begin() and eventually(marker.exists)
    sandbox.signal(signal.SIGTERM)
    assert sandbox.wait().exit_code == 9


@pytest.mark.parametrize("threads", [False, True], ids=["forked", "executed"])
def test_a_signal_before_the_worker_runs_ends_the_launch(box: Box, threads: bool) -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait, daemon=True)
    if threads:  # the guardian is a program then, and the order is there before it has read its plan
        other.start()
    for _ in range(5):
        sandbox = start(box, ["sleep", "60"])
        sandbox.signal(signal.SIGTERM)
        assert sandbox.wait().exit_code in (143, 137)
    over.set()


def test_signals_the_caller_ignores_are_ignored_by_the_worker_and_others_are_not(box: Box) -> None:
    script = ["sh", "-c", "kill -HUP $$; exit 3"]
    assert start(box, script, ignored=[signal.SIGHUP]).wait().exit_code == 3
    assert start(box, script).wait().exit_code == 128 + signal.SIGHUP


def test_signals_blocked_by_the_caller_do_not_reach_inside(box: Box) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
    try:
        assert start(box, ["sh", "-c", "kill -TERM $$; sleep 1; exit 3"]).wait().exit_code == 143
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGCHLD])


def test_kill_ends_it_from_another_thread(box: Box) -> None:
    sandbox = start(box, ["sleep", "60"])
    assert sandbox.begin()
    threading.Thread(target=sandbox.kill).start()
    assert sandbox.wait().exit_code == 137


CHILDREN = """
import os, sys, threading, time
tag = sys.argv[1]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", tag])
    os._exit(0)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""


def test_children_that_detach_end_with_the_command(either: Box) -> None:
    tag = f"9200{os.getpid()}"
    result = either.run(["python3", "-c", CHILDREN + "time.sleep(0.2)", tag])
    assert result.code == 0
    assert eventually(lambda: not tagged(tag))


# A worker that traces pid 1 could clear its parent-death signal and live on.
TAMPER = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
print(libc.ptrace(0x4206, 1, 0, 0), ctypes.get_errno(), flush=True)  # PTRACE_SEIZE
try:
    print(os.open("/proc/1/mem", os.O_RDWR), flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""


def test_the_sandboxs_pid_1_cannot_be_traced_and_a_child_can(either: Box) -> None:
    assert either.python(TAMPER).out == "-1 1\n13\n"
    own = TAMPER.replace("ptrace(0x4206, 1,", "ptrace(0x4206, child,").replace(
        "libc =", "child = os.fork() or time.sleep(1000)\nlibc ="
    )
    assert either.python(own.replace("/proc/1/mem", "/proc/%d/mem' % child + '")).out.startswith("0 0")


CALLER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import msgspec
from skep_bwrap import compile, spawn, HostFacts
from skep_policy.launch import Launch
launch = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Launch)
{threads}
sandbox = spawn(launch, stdin=None, stdout=None, stderr=None{how})
{then}
sandbox.wait()
"""


def caller(box: Box, tag: str, *, threads: bool = False, then: str = "", how: str = "") -> subprocess.Popen[bytes]:
    """A process of its own that runs `sleep TAG` and a detached twin in a sandbox."""
    import msgspec

    launch = box.launch(["sh", "-c", f"setsid sleep {tag} & sleep {tag}; true"])
    stored = box.out / "launch"
    stored.write_bytes(msgspec.msgpack.encode(launch))
    thread = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    code = CALLER.format(folder=str(Path(__file__).parent), threads=thread if threads else "", then=then, how=how)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(stored)], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("threads", [False, True], ids=["forked", "executed"])
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        *((victim, signal.SIGKILL) for victim in ("caller", "guardian", "bwrap", "pid 1", "worker")),
        # The others are ignored by the guardian and bwrap, and by the sandbox's pid 1 as by any.
        *((victim, signal.SIGABRT) for victim in ("caller", "guardian", "bwrap", "worker")),
        *((victim, signal.SIGTERM) for victim in ("caller", "worker")),
    ],
)
def test_nothing_is_left_whoever_is_killed_while_it_runs(
    either: Box, victim: str, number: signal.Signals, threads: bool
) -> None:
    tag = f"93{threads:d}0{os.getpid()}"
    process = caller(either, tag, threads=threads)
    try:
        assert eventually(lambda: len([pid for pid in tagged(tag) if is_sleep(pid)]) == 2)
        sleeper = next(pid for pid in tagged(tag) if is_sleep(pid))
        chain = parents(sleeper)  # sleep, perhaps sh, pid 1, bwrap, guardian, caller
        chain = chain[-5:]
        index = {"caller": -1, "guardian": -2, "bwrap": -3, "pid 1": -4, "worker": -5}[victim]
        os.kill(chain[index], number)
        process.wait(60)
    finally:
        process.kill()  # one that fails must not be what the next ones find
        process.wait()
    assert eventually(lambda: not tagged(tag)), tagged(tag)
    assert eventually(lambda: not any(alive(pid) for pid in chain))


def is_sleep(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe").endswith(("sleep", "coreutils", "busybox"))
    except OSError:
        return False


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.parametrize("threads", [False, True], ids=["forked", "executed"])
@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05])
def test_nothing_is_left_when_the_caller_is_killed_while_it_sets_up(box: Box, delay: float, threads: bool) -> None:
    tag = f"94{int(delay * 1000):02d}{threads:d}{os.getpid()}"
    others = set(orphans())
    process = caller(
        box, tag, threads=threads, then=f"import time, signal; time.sleep({delay}); os.kill(os.getpid(), 9)"
    )
    group = box.bwrap
    process.wait(60)
    assert eventually(lambda: not tagged(tag))
    assert eventually(lambda: not [pid for pid in tagged(group) if str(box.out) in words(pid)])
    assert eventually(lambda: set(orphans()) <= others)


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.004, 0.008, 0.012, 0.02])
def test_nothing_is_left_when_the_guardian_is_killed_while_it_sets_up(box: Box, delay: float) -> None:
    tag = f"95{int(delay * 1000):02d}{os.getpid()}"
    launch = box.launch(["sleep", tag])
    others = own_children()
    for _ in range(5):
        sandbox = spawn(launch, stdin=None, stdout=None, stderr=None)
        threading.Event().wait(delay)
        for child in own_children() - others:
            os.kill(child, signal.SIGKILL)
        try:
            ended = sandbox.wait()
        except BackendUnavailable:
            ended = None
        assert ended is None or ended.exit_code == 137
        assert eventually(lambda: not tagged(tag))


def test_a_guardian_that_fails_with_nobody_to_tell_is_no_second_caller() -> None:
    """It is a fork of the caller, whose program it must not go on with."""
    program = """
        import os, socket
        from skep_bwrap import guardian
        ours, its = socket.socketpair()
        ours.close()
        pid = os.fork()
        if pid == 0:
            guardian.guard(b"tty=none\\0", its.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else "a guardian"
        os.write(1, f"{code}\\n".encode())
    """
    script = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def orphans() -> list[int]:
    """bwraps without arguments we know, left from a set-up: their parent is init and they are of our user."""
    found: list[int] = []
    for pid in tagged("bwrap"):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if stat[1] == "1" and stat[0] not in ("Z", "X") and os.stat(f"/proc/{pid}").st_uid == os.getuid():
            found.append(pid)
    return found


def test_a_configuration_of_megabytes_holds_nobody_up_when_nothing_reads_it(box: Box) -> None:
    fake = box.out / "bwrap"
    fake.write_text("#!/bin/sh\nexec sleep 1000\n")
    fake.chmod(0o755)
    real, words = box.bwrap, ["sh", "-c", 'echo "${#BIG}" > size', *["x" * 100_000] * 15]
    large = {"PATH": os.environ["PATH"], **{f"BIG{number}": "x" * 100_000 for number in range(15)}, "BIG": "x" * 90_000}
    box.bwrap = str(fake)
    sandbox = spawn(box.launch(words, env=large), stdin=None, stdout=None, stderr=None)
    sandbox.signal(signal.SIGTERM)
    assert sandbox.wait().exit_code == 143
    box.bwrap = real
    launch = box.launch(words[:3] + words[3:6], env={name: large[name] for name in ("PATH", "BIG", "BIG1")})
    assert len(launch.config) > 400_000
    assert go(launch).exit_code == 0 and (box.ws / "size").read_text() == "90000\n"


def test_a_proxy_that_never_answers_does_not_hold_a_kill(box: Box) -> None:
    import socket

    from skep_policy.rules import Rules

    ours, theirs = socket.socketpair()
    with ours, theirs:
        launch = box.launch(rules=Rules.build(["a.example.com"]), how={"proxied": True})
        sandbox = spawn(launch, proxy=theirs, stdin=None, stdout=None, stderr=None)
        assert ours.recv(20) == b'SKEP-HANDOFF 1 {"lis'
        threading.Timer(0.1, sandbox.signal, [signal.SIGTERM]).start()
        assert sandbox.wait().exit_code == 143


def test_many_at_once_from_threads_and_no_descriptor_more_than_before(box: Box) -> None:
    before, results = descriptors(), list[int]()

    def one(number: int) -> None:
        results.append(box.sh(f"exit {number}").code)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))
    assert descriptors() == before


def test_a_hundred_runs_leave_no_descriptor_child_or_thread(box: Box) -> None:
    launch = box.launch()
    go(launch)
    before, threads, children = descriptors(), threading.active_count(), own_children()
    for _ in range(100):
        assert go(launch).exit_code == 0
    assert descriptors() <= before and threading.active_count() <= threads and own_children() <= children


def test_failures_leave_no_descriptor_either(box: Box) -> None:
    bad = box.launch(cwd=str(box.ws / "absent"))
    before = descriptors()
    for _ in range(10):
        with pytest.raises(BackendUnavailable):
            go(bad)
    with pytest.raises(OSError, match="Bad file descriptor"):
        go(box.launch(), stdin=9999)
    assert descriptors() == before


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_caller_with_closed_standard_descriptors_is_served(box: Box, closed: tuple[int, ...]) -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
for fd in {closed!r}: os.close(fd)
from skep_bwrap import run
from box import Box
from pathlib import Path
import tempfile
box = Box(Path(tempfile.mkdtemp(dir={str(box.out)!r})), {box.bwrap!r})
script = "echo out; echo err >&2; cat; ls -l /proc/$$/fd | cat > fds; true"
outcome = run(box.boundary(), ["sh", "-c", script], bwrap=box.bwrap)
open({str(box.out / "code")!r}, "w").write(f"{{outcome.exit_code}} {{box.ws}}")
"""
    done = subprocess.run([sys.executable, "-c", code], input=b"in\n", capture_output=True, timeout=60)
    code_text, _, ws = (box.out / "code").read_text().partition(" ")
    assert code_text == "0", done
    assert done.stdout == (b"" if 1 in closed else b"out\n" if 0 in closed else b"out\nin\n")
    assert done.stderr == (b"" if 2 in closed else b"err\n")
    for fd in closed:
        assert f" {fd} -> /dev/null" in (Path(ws) / "fds").read_text()


@pytest.mark.parametrize("link", ["folder", "file", "dangling"])
def test_a_link_on_the_way_to_a_mount_point_is_refused_by_name(box: Box, link: str) -> None:
    inside = box.ws / "a"
    inside.mkdir()
    target = {"folder": box.out, "file": box.out / "f", "dangling": box.out / "absent"}[link]
    (box.out / "f").write_text("x")
    (inside / "b").symlink_to(target)
    protects = (PathRule(str(inside / "b"), Access.READ, "dir"),)
    with pytest.raises(BackendUnavailable, match=r"goes through a link below the writable .*remove the link b"):
        go(box.launch(protects=protects))
    with pytest.raises(BackendUnavailable, match="goes through a link"):
        check_destination(str(box.ws), str(inside / "b/c/d"))
    assert sorted(path.name for path in box.out.iterdir()) == ["f"]
    check_destination(str(box.ws), str(inside))


def test_a_mount_point_that_is_gone_is_refused_by_name(box: Box) -> None:
    with pytest.raises(BackendUnavailable, match=r"gone.*try again"):
        check_destination(str(box.ws), str(box.ws / "absent/x"))
    with pytest.raises(BackendUnavailable, match="gone"):
        check_destination(str(box.ws / "absent"), str(box.ws / "absent/x"))


@pytest.mark.parametrize("bound", ["wall", "set-up"])
def test_a_set_up_that_never_ends_is_ended_and_the_worker_never_runs(
    box: Box, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = f"9200{os.getpid()}"
    fake = box.out / "bwrap"
    fake.write_text(f"#!/bin/sh\nsleep {tag}\n")
    fake.chmod(0o755)
    box.bwrap = str(fake)
    limits = Limits(wall=0.5 if bound == "wall" else 60.0)
    monkeypatch.setattr(import_module("skep_bwrap.spawn"), "MAX_SET_UP", 60.0 if bound == "wall" else 0.5)
    with pytest.raises(BackendUnavailable, match="not set up in time") as caught:
        box.sh("touch ran", limits=limits)
    assert caught.value.check == "set-up" and caught.value.fix
    assert not (box.ws / "ran").exists() and not tagged(tag)


def test_a_bwrap_that_cannot_start_never_runs_the_worker(box: Box) -> None:
    fake = box.out / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    box.bwrap = str(fake)
    with pytest.raises(BackendUnavailable, match="AppArmor"):
        box.sh("touch ran")
    assert not (box.ws / "ran").exists()


def test_children_without_capabilities_are_served_without_a_namespace_of_their_own(box: Box) -> None:
    """As under Ubuntu's profile for what bwrap starts: the launch is made again, and the record says so."""
    fake = box.out / "bwrap"
    fake.write_text(f"#!{sys.executable}\n" + FAKE.format(real=box.bwrap))
    fake.chmod(0o755)
    box.bwrap = str(fake)
    result = box.sh("id -u; echo x > f; cat f")
    assert (result.code, result.out) == (0, f"{os.getuid()}\nx\n")
    assert "refused" in str(result.outcome.layers["apart"])
    assert result.outcome.attestation["apart"] == "no"


# Takes the capabilities from bwrap's child, and with them what the shim starts as uid 0 for.
FAKE = """
import os, sys
fd = int(sys.argv[2])
args = os.read(fd, 1 << 20).split(b"\\0")[:-1]
os.close(fd)
kept, at = [], 0
while at < len(args):
    if args[at] == b"--cap-add":
        at += 2
        continue
    kept.append(args[at])
    at += 1
new = os.memfd_create("args", 0)
os.write(new, b"".join(word + b"\\0" for word in kept))
os.lseek(new, 0, 0)
os.execv({real!r}, [{real!r}, "--args", str(new), *sys.argv[3:]])
"""


def test_a_socket_that_goes_away_before_it_is_covered_does_not_stop_the_launch(box: Box) -> None:
    """Sockets of a host come and go, those of other users' programs too; one that stays is covered all the same."""
    import socket

    gone, stays = box.out / "gone", box.out / "stays"
    with socket.socket(socket.AF_UNIX) as passing, socket.socket(socket.AF_UNIX) as staying:
        for sock, path in ((passing, gone), (staying, stays)):
            sock.bind(str(path))
            sock.listen()
        launches: list[Launch] = []

        def compiled(launch: Launch) -> None:
            launches.append(launch)
            gone.unlink(missing_ok=True)

        script = f"import socket; print(socket.socket(socket.AF_UNIX).connect_ex('{stays}'))"
        result = box.run(["python3", "-c", script], how={"compiled": compiled})
    assert result.code == 0 and result.out == f"{errno.ECONNREFUSED}\n", result.err
    assert len(launches) == 1 and f"cover=socket {gone}".encode() in launches[0].config
    assert not gone.exists()  # bwrap would have made a file there
