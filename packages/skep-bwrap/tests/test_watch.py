"""What no cgroup holds is held by the guardian's looks: the sum of memory, root's processes, what is left of a disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from skep_bwrap import BackendUnavailable, Ended, Sandbox
from skep_bwrap.watch import MAX_DESCRIPTORS, Disk, Tree, Watch, in_nameless_files, memory, read
from skep_policy.boundary import Limits
from skep_policy.errors import PolicyError

from .box import Box, eventually, go, tagged
from .elsewhere import WITHOUT_CGROUPS, Told, elsewhere

pytestmark = pytest.mark.sandbox

MIB = 1 << 20
SEVERAL = """
import os, time
children = []
for _ in range({count}):
    pid = os.fork()
    if pid == 0:
        held = bytearray({each})
        held[::4096] = b"x" * len(held[::4096])
        time.sleep(100)
    children.append(pid)
time.sleep({seconds})
print("held")
for pid in children:
    os.kill(pid, 9)
"""
SHARED = """
import os, time
held = bytearray(150 << 20)
held[::4096] = b"x" * len(held[::4096])
for _ in range(9):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
time.sleep(2)
print("held")
"""
FILLED = """
import time
with open("{folder}/filled", "wb") as file:
    for _ in range({mebibytes}):
        file.write(bytes(1 << 20))
held = bytearray({besides})
held[::4096] = b"x" * len(held[::4096])
time.sleep({seconds})
print("held")
"""


@pytest.fixture
def there(base: Path) -> Path:
    folder = base / f"elsewhere-{os.urandom(4).hex()}"
    folder.mkdir()
    return folder


def without_cgroups(there: Path, bwrap: str, script: str, **limits: object) -> Told:
    told = elsewhere(there, bwrap, WITHOUT_CGROUPS, script, **limits)
    assert "ours to divide" in told.layers["cgroup"]
    return told


@pytest.mark.parametrize(("count", "each"), [(30, 10 * MIB), (2, 120 * MIB)])
def test_processes_that_hold_too_much_together_are_ended(there: Path, system: str, count: int, each: int) -> None:
    script = SEVERAL.format(count=count, each=each, seconds=100)
    told = without_cgroups(there, system, script, memory=200 * MIB)
    assert (told.code, told.limit, told.layers["memory"], told.out) == (137, "memory", True, "")


def test_processes_that_hold_less_together_are_not(there: Path, system: str) -> None:
    script = SEVERAL.format(count=30, each=4 * MIB, seconds=1)
    told = without_cgroups(there, system, script, memory=400 * MIB)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")


def test_memory_that_processes_share_counts_once(there: Path, system: str) -> None:
    told = without_cgroups(there, system, SHARED, memory=300 * MIB)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")


def test_one_process_that_holds_too_much_is_refused_it_by_the_kernel(there: Path, system: str) -> None:
    script = "held = [bytearray(16 << 20) for _ in range(40)]; print('held')"
    told = without_cgroups(there, system, script, memory=200 * MIB)
    assert (told.code != 0, told.limit, told.out) == (True, "memory", "")
    assert without_cgroups(there, system, script, memory=2000 * MIB).out == "held\n"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_what_fills_a_file_system_in_memory_counts_as_memory(there: Path, system: str, folder: str) -> None:
    script = FILLED.format(folder=folder, mebibytes=150, besides=100 * MIB, seconds=100)
    told = without_cgroups(there, system, script, memory=200 * MIB)
    assert (told.code, told.limit, told.out) == (137, "memory", "")


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_what_is_in_a_file_system_in_memory_may_be_as_much_as_memory(there: Path, system: str, folder: str) -> None:
    script = FILLED.format(folder=folder, mebibytes=100, besides=50 * MIB, seconds=1)
    told = without_cgroups(there, system, script, memory=250 * MIB)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")


NAMELESS = """
import os, time
files = [os.memfd_create("held") for _ in range(5)]
for fd in files:
    for _ in range({each}):
        os.write(fd, bytes(1 << 20))
time.sleep({seconds})
print("held")
"""


def test_files_without_a_name_count_as_memory(there: Path, system: str) -> None:
    told = without_cgroups(there, system, NAMELESS.format(each=50, seconds=100), memory=200 * MIB)
    assert (told.code, told.limit, told.out) == (137, "memory", "")
    told = without_cgroups(there, system, NAMELESS.format(each=20, seconds=1), memory=200 * MIB)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")


def test_who_has_more_open_than_can_be_looked_at_holds_what_the_host_does() -> None:
    before = in_nameless_files([os.getpid()], 1 << 60)
    held = os.memfd_create("held")
    try:
        os.pwrite(held, bytes(MIB), 0)
        assert in_nameless_files([os.getpid()], 1 << 60) == before + MIB
        as_many = MAX_DESCRIPTORS // len(os.listdir("/proc/self/fd")) + 1
        assert in_nameless_files([os.getpid()] * as_many, 1 << 60) == 1 << 60
    finally:
        os.close(held)


BEHIND = """
import os, time
for _ in range({others}):
    if os.fork() == 0:
        time.sleep(100)
pid = os.fork()
if pid == 0:
    held = [bytearray(60 << 20) for _ in range({times})]
    for each in held:
        each[::4096] = b"x" * len(each[::4096])
    time.sleep({seconds})
    os._exit(0)
os.waitpid(pid, 0)
print("held")
"""


def test_a_process_among_many_is_looked_at(there: Path, system: str) -> None:
    told = without_cgroups(there, system, BEHIND.format(others=5, times=1, seconds=1), memory=400 * MIB)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")
    children = BEHIND.format(others=1000, times=1, seconds=100)
    told = without_cgroups(there, system, children, processes=900)
    assert (told.code, told.limit) == (137, "processes") if os.geteuid() == 0 else told.code != 0
    assert len(listed(1000)) == 1000


def listed(count: int) -> list[int]:
    """The tree of a process with so many children, which does not list them in one page."""
    script = (
        "import os, signal\nfor _ in range(%d):\n    os.fork() or signal.pause()\nprint(flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", script % count], stdout=subprocess.PIPE, text=True) as top:
        try:
            assert top.stdout is not None and top.stdout.readline() == "\n"
            return Tree(top.pid).pids
        finally:
            for pid in (*Tree(top.pid).pids, top.pid):
                os.kill(pid, signal.SIGKILL)


MOUNTED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x20000) < 0:
    print(os.strerror(ctypes.get_errno()))
    sys.exit()
with open("/proc/self/setgroups", "w") as file:
    file.write("deny")
with open("/proc/self/uid_map", "w") as file:
    file.write("0 {uid} 1")
print(libc.mount(b"none", b"/mnt", b"ramfs", 0, None))
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="root gets no namespace in any case")
def test_where_memory_is_looked_at_none_is_in_file_systems_of_the_workers_own(box: Box) -> None:
    script = ["sh", "-c", f"exec python3 -c '{MOUNTED.format(uid=os.getuid())}' > told"]
    assert go(box.launch(script, limits=Limits(memory=400 * MIB))).exit_code == 0
    assert (box.ws / "told").read_text() == "No space left on device\n"
    for limits in (Limits(), Limits(memory=400 * MIB)):
        assert go(box.launch(script, limits=limits, how={"memory_rlimit": False})).exit_code == 0
        assert (box.ws / "told").read_text() == "0\n"


BOMB = """
import os, sys, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
except OSError:
    sys.exit(3)
"""


def test_a_fork_bomb_of_root_is_ended_and_one_of_a_user_held_by_the_kernel(there: Path, system: str) -> None:
    told = without_cgroups(there, system, BOMB, processes=60)
    assert told.layers["processes"] is True
    assert (told.code, told.limit) == (137, "processes") if os.geteuid() == 0 else told.code == 3


def test_as_many_processes_as_the_limit_says_are_let_be(there: Path, system: str) -> None:
    script = SEVERAL.format(count=30, each=1, seconds=1)
    told = without_cgroups(there, system, script, processes=60)
    assert (told.code, told.limit, told.out) == (0, None, "held\n")


FULL = """
import os, sys, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
except OSError:
    open("full", "w").close()
while not os.path.exists("seen"):
    time.sleep(0.01)
sys.exit({code})
"""


@pytest.mark.skipif(os.geteuid() == 0, reason="RLIMIT_NPROC does not bind root")
@pytest.mark.parametrize(("code", "limit"), [(3, "processes"), (0, None)])
def test_a_command_that_failed_after_it_met_the_limit_of_processes_is_told_so(
    box: Box, code: int, limit: str | None
) -> None:
    def guardian_has_looked(sandbox: Sandbox) -> None:
        (guardian,) = (pid for pid in Tree(os.getpid()).pids if parent_of(pid) == os.getpid())

        def reads() -> int:
            return int(Path(f"/proc/{guardian}/io").read_text().split()[5])

        assert eventually((box.ws / "full").exists, seconds=60)
        before = reads()
        # One look at 50 processes reads 50 files at least: after four times that, one has begun since.
        assert eventually(lambda: reads() > before + 200, seconds=60)
        (box.ws / "seen").touch()

    followers: list[threading.Thread] = []

    def spawned(sandbox: Sandbox) -> None:
        followers.append(threading.Thread(target=guardian_has_looked, args=(sandbox,)))
        followers[0].start()

    limits = Limits(processes=50, wall=120)
    result = box.run(["python3", "-c", FULL.format(code=code)], limits=limits, how={"spawned": spawned})
    followers[0].join()
    assert (result.code, result.outcome.limit) == (code, limit)


def parent_of(pid: int) -> int:
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


FILLER = """
import sys, time
written = 0
try:
    for number in range({files}):
        with open(f"{{number}}", "wb") as file:
            file.write(bytes({size}))
except OSError as error:
    print(error.errno)
    sys.exit(1)
time.sleep({seconds})
print("written")
"""


def small(there: Path, options: str = "size=64m") -> str:
    return f"mount -t tmpfs -o {options} none {there}"


@pytest.mark.parametrize(("files", "size"), [(1, 50 * MIB), (10_000, 4096)])
def test_what_fills_a_disk_is_ended(there: Path, system: str, files: int, size: int) -> None:
    told = elsewhere(there, system, small(there), FILLER.format(files=files, size=size, seconds=100))
    assert (told.limit, told.layers["disk-free"], told.out) == ("disk-free", True, "")


@pytest.mark.parametrize(("files", "size"), [(1, 20 * MIB), (5_000, 4096)])
def test_what_leaves_half_of_a_small_disk_is_not(there: Path, system: str, files: int, size: int) -> None:
    told = elsewhere(there, system, small(there), FILLER.format(files=files, size=size, seconds=1))
    assert (told.code, told.limit, told.out) == (0, None, "written\n")


def test_what_makes_all_files_a_disk_can_hold_is_ended(there: Path, system: str) -> None:
    mount = small(there, "size=64m,nr_inodes=2000")
    told = elsewhere(there, system, mount, FILLER.format(files=2000, size=0, seconds=100))
    assert told.limit == "disk-free" and "written" not in told.out
    twin = elsewhere(there, system, mount, FILLER.format(files=500, size=0, seconds=1))
    assert (twin.limit, twin.out) == (None, "written\n")


def test_the_policy_says_how_much_is_to_be_left_and_a_launch_that_finds_less_is_refused(there: Path, box: Box) -> None:
    script = FILLER.format(files=1, size=40 * MIB, seconds=1)
    told = elsewhere(there, box.bwrap, small(there), script, disk_free=10 * MIB)
    assert (told.limit, told.out) == (None, "written\n")
    with pytest.raises(AssertionError, match=r"MiB left, and 100MiB are to be left"):
        elsewhere(there, box.bwrap, small(there), script, disk_free=100 * MIB)
    with pytest.raises(PolicyError, match=r"limits\.disk-free: .*--disk-free"):
        box.run(["true"], limits=Limits(disk_free=1 << 60))


def test_a_full_disk_refuses_no_launch(there: Path, system: str) -> None:
    mount = f"{small(there)} && {{ head -c 70000000 /dev/zero > {there}/full; true; }}"
    script = "import time; time.sleep(1); print('ran'); open('more', 'wb').write(bytes(1 << 20))"
    told = elsewhere(there, system, mount, script)
    assert (told.code, told.limit, told.out) == (1, None, "ran\n") and "No space left" in told.err


@pytest.mark.parametrize("guardian", ["forked", "a program of its own"])
def test_a_guardian_looks_whatever_it_runs_as(box: Box, guardian: str) -> None:
    """It is a program where its caller has threads, and the module of the looks is then found beside it."""
    over, fine = f"disk {1 << 60} 0 {box.ws}", f"disk 0 0 {box.ws}"
    ended: list[Ended] = []

    def launches() -> None:
        ended.append(go(box.launch(["sleep", "100"]), watched=[fine, over], wall=120.0))
        ended.append(go(box.launch(["sleep", "1"]), watched=[fine], wall=120.0))

    if guardian == "forked":
        launches()
    else:
        thread = threading.Thread(target=launches)
        thread.start()
        thread.join()
    assert [(each.exit_code, each.limit) for each in ended] == [(137, "disk-free"), (0, None)]


def test_what_cannot_be_looked_after_does_not_go_on(box: Box) -> None:
    tag = f"9700{os.getpid()}"
    with pytest.raises(BackendUnavailable, match="guardian of the sandbox failed: ValueError"):
        go(box.launch(["sleep", tag]), watched=["memory x"], wall=120.0)
    assert not tagged(tag)
    told = threading.Event()
    watch = Watch(["memory 1"], lambda: 1 // 0, told.set)
    assert told.wait(60)
    with pytest.raises(ZeroDivisionError):
        watch.ended()


def test_the_sum_of_memory_is_that_of_the_kernels_own_accounts() -> None:
    held = bytearray(64 * MIB)
    held[::4096] = b"x" * len(held[::4096])
    rough = memory(os.getpid(), [os.getpid()], 1 << 60, swap=False)
    status = memory(os.getpid(), [os.getpid()], 1 * MIB, swap=True)
    assert 64 * MIB < status <= rough, "which has the pages of files too"
    assert memory(os.getpid(), [4194305], 1, swap=True) < MIB, "who is gone holds nothing"


def test_a_disk_that_cannot_be_asked_is_not_taken_for_full() -> None:
    assert Disk("0 0 /").room() is not None
    assert Disk(f"{1 << 60} 0 /").room() is None
    assert Disk(f"{1 << 60} 0 /nowhere at all").room() is not None
