"""A fork bomb, a memory hog and a disk filler are held, and it is said by what."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_bwrap.cgroup import Undivided, advice, hold, release, renew
from skep_bwrap.cgroup import _carried as carried  # pyright: ignore[reportPrivateUsage]
from skep_bwrap.cgroup import _dividable as dividable  # pyright: ignore[reportPrivateUsage]
from skep_policy.boundary import Limits

from .box import Box, ended_by_wall, eventually, tagged

pytestmark = pytest.mark.sandbox

BOMB = """
import os, sys, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print(made, error.errno)
    sys.exit(3)
print(made)
"""
HOG = "held = [bytearray(16 << 20) for _ in range(40)]; print('held')"


def test_processes(either: Box) -> None:
    result = either.python(BOMB, limits=Limits(processes=50, wall=60))
    assert result.outcome.layers["processes"] is True
    if os.geteuid() != 0 or result.outcome.layers["cgroup"] is True:
        made, code = result.out.split()
        assert 30 < int(made) <= 50 and code == "11" and result.code == 3
    assert result.outcome.limit == "processes" or os.geteuid() != 0
    assert either.python(BOMB.replace("500", "20"), limits=Limits(processes=50, wall=60)).out == "20\n"
    assert either.python(BOMB.replace("500", "60")).out == "60\n"


def test_a_bomb_that_never_ends_is_ended_by_the_wall(box: Box) -> None:
    tag = f"9600{os.getpid()}"
    bomb = f"""
import os
while True:
    try:
        os.fork() == 0 and os.execvp('sleep', ['sleep', '{tag}'])
    except OSError:
        pass
"""
    result = ended_by_wall(lambda wall: box.python(bomb, limits=Limits(processes=40, wall=wall)))
    assert result.outcome.limit == "wall" and eventually(lambda: not tagged(tag))


def test_memory_of_a_process(either: Box) -> None:
    result = either.python(HOG, limits=Limits(memory=200 << 20, wall=60))
    assert result.code != 0 and "held" not in result.out
    assert result.outcome.layers["memory"] is True and result.outcome.limit == "memory"
    assert either.python(HOG, limits=Limits(memory=2000 << 20, wall=60)).out == "held\n"


def test_memory_that_is_filled_as_a_file_system(either: Box) -> None:
    fill = "head -c 600000000 /dev/zero > {}/f && echo filled"
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        result = either.sh(fill.format(folder), limits=Limits(memory=100 << 20, wall=60))
        assert "filled" not in result.out and result.code != 0, folder
    assert (
        either.sh("head -c 50000000 /dev/zero > /tmp/f && echo filled", limits=Limits(memory=200 << 20)).out
        == "filled\n"
    )


def test_file_size(either: Box) -> None:
    limits = Limits(file_size=1 << 20, wall=60)
    result = either.sh("head -c 2000000 /dev/zero > big", limits=limits)
    assert result.code != 0 and (either.ws / "big").stat().st_size == 1 << 20
    assert result.outcome.layers["file-size"] is True
    direct = either.run(
        ["python3", "-c", "import signal; signal.signal(25, 0); open('big', 'wb').write(bytes(2 << 20))"], limits=limits
    )
    assert (direct.code, direct.outcome.limit) == (128 + 25, "file-size")
    assert either.sh("head -c 1000000 /dev/zero > small", limits=limits).outcome.limit is None


def test_layers_say_what_was_not_asked_for(box: Box) -> None:
    layers = box.run(["true"], limits=Limits()).outcome.layers
    assert [layers[name] for name in ("wall", "memory", "processes", "file-size")] == [False] * 4


def test_no_core_is_dumped_nor_handed_to_the_hosts_handler(box: Box) -> None:
    result = box.sh("ulimit -Hc; ulimit -c unlimited; kill -SEGV $$")
    assert result.out.split()[0] == "0" and not list(box.ws.glob("core*"))  # 1 byte, shown in blocks
    assert box.python("import resource; print(resource.getrlimit(resource.RLIMIT_CORE))").out == "(1, 1)\n"


def test_cgroups_that_were_made_go_with_the_sandbox_or_are_released() -> None:
    limits = Limits(memory=100 << 20, processes=10)
    held = hold(limits, f"skep-{os.getpid()}-test")
    try:
        assert all(Path(folder).is_dir() for folder in held.folders)
        for layer, answer in held.layers.items():
            assert answer is True or "ours to divide" in str(answer), layer
    finally:
        release(held)
    assert not any(Path(folder).exists() for folder in held.folders)
    renew(held)
    assert all(Path(folder).is_dir() for folder in held.folders)
    release(held)
    assert hold(Limits(), "x").folders == ()


def test_cgroups_a_worker_made_in_its_own_go_with_it() -> None:
    held = hold(Limits(processes=10), f"skep-{os.getpid()}-nested")
    if not held.folders:
        pytest.skip("no cgroup of this host is ours to divide")
    for folder in held.folders:
        (Path(folder) / "a/b").mkdir(parents=True)
        (Path(folder) / "c").mkdir()
    release(held)
    assert not any(Path(folder).exists() for folder in held.folders)


def test_a_cgroup_of_a_caller_that_is_gone_is_swept_by_the_next_and_one_of_a_living_caller_is_not() -> None:
    limits = Limits(processes=10)
    living, dead = hold(limits, f"skep-{os.getpid()}-alive"), hold(limits, f"skep-4194305-{os.getpid()}")
    if not dead.folders:
        pytest.skip("no cgroup of this host is ours to divide")
    try:
        release(hold(limits, f"skep-{os.getpid()}-next"))
        assert not any(Path(folder).exists() for folder in dead.folders)
        assert all(Path(folder).exists() for folder in living.folders)
    finally:
        release(living)


def version_2(folder: Path, controllers: str, **files: str) -> Path:
    """Stands for a folder of version 2, as far as reading goes."""
    folder.mkdir()
    (folder / "cgroup.subtree_control").write_text(controllers)
    for name, text in {"cgroup.procs": "", **files}.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_version_2_is_divided_beside_the_callers_own_cgroup_unless_that_carries_limits(tmp_path: Path) -> None:
    above = version_2(tmp_path / "user.slice", "memory pids\n")
    free = version_2(above / "free.scope", "", memory_max="max\n", pids_max="max\n", cpu_max="max 100000\n")
    assert dividable(str(free), "pids") == str(above) and dividable(str(above), "pids") == str(above)
    for file, value in (("memory.max", "1048576"), ("memory.high", "1048576"), ("cpu.max", "50000 100000")):
        bound = version_2(above / f"{file}.scope", "", **{file.replace(".", "_"): f"{value}\n"})
        with pytest.raises(Undivided, match=f"its {file} would be lost"):
            dividable(str(bound), "pids")
    with pytest.raises(Undivided, match="nobody hands down cpu"):
        dividable(str(free), "cpu")
    with pytest.raises(Undivided, match="none is mounted"):
        dividable(None, "pids")


def test_the_number_of_processes_of_the_callers_own_cgroup_is_carried_over(tmp_path: Path) -> None:
    """systemd gives every unit one."""
    own = str(version_2(tmp_path / "a.scope", "", pids_max="100\n"))
    assert carried(own, [("pids.max", "500")]) == [("pids.max", "100")]
    assert carried(own, [("pids.max", "50")]) == [("pids.max", "50")]
    assert carried(own, [("memory.max", "1")]) == [("memory.max", "1"), ("pids.max", "100")]
    free = str(version_2(tmp_path / "b.scope", "", pids_max="max\n"))
    assert carried(free, [("memory.max", "1")]) == [("memory.max", "1")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root hands down nothing by itself: every cgroup is its to write")
def test_a_cgroup_that_was_given_to_the_user_is_made_to_hand_down(tmp_path: Path) -> None:
    given = version_2(tmp_path / "given", "", cgroup_controllers="memory pids\n")
    own = version_2(given / "shell", "")
    assert dividable(str(own), "pids") == str(given)
    assert (given / "cgroup.subtree_control").read_text() == "+pids"
    with pytest.raises(Undivided, match="nobody hands down cpu"):
        dividable(str(own), "cpu")


def test_what_helps_is_said_where_systemd_runs() -> None:
    words = advice(os.geteuid())
    assert words == "" or words.startswith("; `systemd-run ")
