"""What is read of a host: sockets, mounts, cgroups, plans, and which bwrap is trusted."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from skep_bwrap import BackendUnavailable, HostFacts, find_bwrap
from skep_bwrap.cgroup import hierarchies, settings
from skep_bwrap.find import others_in
from skep_bwrap.guardian import Plan
from skep_bwrap.mountinfo import aliases, parse, single_files, translated
from skep_bwrap.sockets import census, parse_census
from skep_bwrap.watch import count
from skep_policy.boundary import Limits

TABLE = """Num       RefCount Protocol Flags    Type St Inode Path
ffff888004a2d000: 00000002 00000000 00010000 0001 01 17030 /run/listening
ffff888004a2d001: 00000003 00000000 00000000 0001 03 17031 /run/connected
ffff888004a2d002: 00000002 00000000 00000000 0002 01 17032 /run/datagram
ffff888004a2d003: 00000002 00000000 00010000 0005 01 17033 /run/seqpacket with a space
ffff888004a2d004: 00000002 00000000 00010000 0001 01 17034 @abstract
ffff888004a2d005: 00000002 00000000 00010000 0001 01 17035 relative.sock
ffff888004a2d006: 00000002 00000000 00010000 0001 01 17036 /run/form\x0cfeed
ffff888004a2d007: 00000002 00000000 00000000 0002 01 17037
"""

MOUNTS = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
24 22 8:1 /home /mnt/with\\040space rw - ext4 /dev/sda1 rw
25 22 0:30 /docker.sock /srv/docker.sock rw - tmpfs tmpfs rw
26 22 0:31 / /net rw - nfs4 server:/ rw
27 22 0:31 /x.sock /net/x.sock rw - nfs4 server:/ rw
28 22 0:32 /y /fuse/y rw - fuse.sshfs y rw
"""


def test_a_census_lists_who_can_be_spoken_to() -> None:
    assert parse_census(TABLE) == [
        "/run/datagram",
        "/run/form\x0cfeed",
        "/run/listening",
        "/run/seqpacket with a space",
        "relative.sock",
    ]
    assert parse_census("") == [] and parse_census("Num RefCount\n") == []


def test_the_census_of_this_host_finds_sockets_however_they_were_bound(tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as absolute, socket.socket(socket.AF_UNIX) as relative:
        absolute.bind(folder + "/absolute")
        absolute.listen()
        os.chdir(folder)
        try:
            relative.bind("relative")
            relative.listen()
            found = census().sockets
        finally:
            os.chdir(here)
        assert {folder + "/absolute", folder + "/relative"} <= set(found)
    os.unlink(folder + "/absolute")
    assert folder + "/absolute" not in census().sockets


def test_a_socket_that_was_renamed_since_it_was_bound_is_found(tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(folder + "/new")
        server.listen()
        os.rename(folder + "/new", folder + "/live")
        assert folder + "/live" in census().sockets


def test_sockets_that_come_and_go_beside_it_do_not_hide_one_that_stays(tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    over = threading.Event()

    def come_and_go(name: str) -> None:
        while not over.is_set():
            with socket.socket(socket.AF_UNIX) as passing:
                passing.bind(f"{folder}/bound-{name}")
                passing.listen()
                os.rename(f"{folder}/bound-{name}", f"{folder}/passing-{name}")
                os.unlink(f"{folder}/passing-{name}")

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(folder + "/new")
        server.listen()
        os.rename(folder + "/new", folder + "/live")
        others = [threading.Thread(target=come_and_go, args=(name,)) for name in "ab"]
        for other in others:
            other.start()
        try:
            mounts = HostFacts.gather().mounts
            assert all(folder + "/live" in census(mounts).sockets for _ in range(200))
        finally:
            over.set()
            for other in others:
                other.join()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_bound_through_a_descriptor_is_found_by_its_inode(tmp_path: Path, kind: int) -> None:
    folder = Path(os.path.realpath(tmp_path)) / "own"
    (folder / "deeper").mkdir(parents=True)
    fd = os.open(folder, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX, kind) as near, socket.socket(socket.AF_UNIX, kind) as far:
            for server, name in ((near, "s"), (far, "deeper/s")):
                server.bind(f"/proc/self/fd/{fd}/{name}")
                if kind != socket.SOCK_DGRAM:
                    server.listen()
            found = census(HostFacts.gather().mounts)
            assert {str(folder / "s"), str(folder / "deeper/s")} <= set(found.sockets)
    finally:
        os.close(fd)


def test_a_socket_that_was_moved_is_found_or_told_of(elsewhere: Path) -> None:
    (elsewhere / "a/b").mkdir(parents=True)
    (elsewhere / "x/y/z").mkdir(parents=True)
    mounts = HostFacts.gather().mounts
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(elsewhere / "a/b/s"))
        server.listen()
        (elsewhere / "a/b/s").rename(elsewhere / "a/moved")
        found = census(mounts)
        assert str(elsewhere / "a/moved") in found.sockets
        assert str(elsewhere / "a/b/s") not in found.lost
        (elsewhere / "a/moved").rename(elsewhere / "x/y/z/s")
        assert str(elsewhere / "a/b/s") in census(mounts).lost
        fd = os.open(elsewhere / "x/y/z", os.O_PATH)
        try:
            assert str(elsewhere / "x/y/z/s") in census(mounts).sockets
        finally:
            os.close(fd)
        (elsewhere / "x/y/z/s").unlink()
    assert str(elsewhere / "a/b/s") not in census(mounts).lost


LISTEN = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/mnt/s'); s.listen(); print(flush=True); input()"


def test_a_socket_bound_in_another_mount_namespace_is_found_where_it_is_here(tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    script = f'mount --bind {folder} /mnt && exec {sys.executable} -c "{LISTEN}"'
    with subprocess.Popen(
        ["unshare", "-r", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        if not daemon.stdout.readline() and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
            pytest.skip("no user namespaces here")
        assert folder + "/s" in census(HostFacts.gather().mounts).sockets
        daemon.communicate(b"\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the root")
def test_a_socket_bound_in_another_root_is_found_where_it_is_here(tmp_path: Path) -> None:
    folder = os.path.realpath(tmp_path)
    (tmp_path / "mnt").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", f"import os, socket; os.chroot({folder!r}); {LISTEN}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline()
        assert folder + "/mnt/s" in census().sockets
        daemon.communicate(b"\n")


def test_a_path_of_another_mount_namespace_is_translated_by_what_stands_there() -> None:
    theirs = parse("9 1 0:50 / / rw - overlay overlay rw\n10 9 8:1 /srv/data /run/app rw - ext4 /dev/sda1 rw\n")
    assert translated("/run/app/a/s", theirs, parse(MOUNTS)) == ["/srv/data/a/s"]
    assert translated("/home/s", parse(MOUNTS), parse(MOUNTS)) == ["/home/s", "/mnt/with space/s"]
    assert translated("/tmp/s", theirs, parse(MOUNTS)) == [] == translated("/s", (), parse(MOUNTS))


def test_mounts_are_read_with_their_escapes_undone() -> None:
    points = [mount.point for mount in parse(MOUNTS)]
    assert points == ["/", "/proc", "/mnt/with space", "/srv/docker.sock", "/net", "/net/x.sock", "/fuse/y"]


def test_the_same_file_is_found_at_its_other_places() -> None:
    mounts = parse(MOUNTS)
    assert aliases(mounts, "/home/u/.ssh") == ["/mnt/with space/u/.ssh"]
    assert aliases(mounts, "/mnt/with space/u/.ssh") == ["/home/u/.ssh"]
    assert aliases(mounts, "/etc/x") == [] and aliases(mounts, "/proc/1") == [] and aliases((), "/x") == []


def test_an_alias_below_another_mount_is_none() -> None:
    mounts = parse(MOUNTS + "29 24 0:40 / /mnt/with\\040space/u rw - tmpfs t rw\n")
    assert aliases(mounts, "/home/u/.ssh") == []


def test_a_socket_mounted_by_itself_is_a_candidate_and_a_dead_server_is_not_asked() -> None:
    assert single_files(parse(MOUNTS)) == ["/mnt/with space", "/srv/docker.sock"]


def test_gathered_facts_are_complete_on_this_host() -> None:
    facts = HostFacts.gather()
    assert os.access(facts.interpreter, os.X_OK) and os.path.isdir(facts.prefix) and os.path.isfile(facts.shim)
    assert set(facts.namespaces) >= {"user", "mnt", "pid", "ipc", "uts", "net"}
    assert facts.private and all(os.path.isdir(path) for path in facts.private)
    assert facts.mounts and any(path.endswith("skep_bwrap") for path in facts.code)


CGROUP1 = "31 30 0:27 / /cg/pids rw - cgroup cgroup rw,pids\n32 30 0:28 / /cg/memory rw - cgroup cgroup rw,memory\n"
CGROUP2 = "30 22 0:26 / /cg rw - cgroup2 cgroup2 rw\n"


def test_hierarchies_of_both_versions() -> None:
    own = "3:pids:/a\n2:memory:/\n0::/user.slice/x.scope\n"
    assert hierarchies(CGROUP1, own) == {"pids": "/cg/pids/a", "memory": "/cg/memory"}
    assert hierarchies(CGROUP2, "0::/user.slice/x.scope\n") == {"": "/cg/user.slice/x.scope"}
    assert hierarchies("", own) == {}


def test_what_is_written_for_a_limit() -> None:
    limits = Limits(memory=1 << 20, processes=7)
    assert settings(limits, 1) == {
        "pids": [("pids.max", "7")],
        "memory": [("memory.limit_in_bytes", "1048576")],
    }
    assert settings(limits, 2)["memory"][0] == ("memory.max", "1048576")
    assert settings(Limits(), 2) == {}


def test_counters_of_events(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 9\n")
    assert count(str(tmp_path / "memory.events"), "oom_kill") == 2
    assert count(str(tmp_path / "memory.events"), "max") == 0 and count(str(tmp_path / "absent"), "x") == 0


def test_a_plan_keeps_order_odd_bytes_and_equals_signs() -> None:
    plan = Plan(b"argv=/b\0argv=a=b\0argv=\xff\0wall=1.5\0keep=3\0keep=4\0\0")
    assert plan.many("argv") == ["/b", "a=b", os.fsdecode(b"\xff")]
    assert plan.number("keep") == 4 and plan.number("tty") is None and plan.many("tty") == []


def program(folder: Path, mode: int = 0o755) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bwrap"
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_the_first_bwrap_on_path_is_taken_by_its_real_path(tmp_path: Path) -> None:
    real = program(tmp_path / "real")
    (tmp_path / "link").mkdir()
    (tmp_path / "link/bwrap").symlink_to(real)
    environ = {"PATH": f"relative:{tmp_path / 'absent'}:{tmp_path / 'link'}:/usr/bin"}
    assert find_bwrap(environ=environ) == os.path.realpath(real)


def test_a_bwrap_that_a_worker_could_have_planted_is_passed_over(tmp_path: Path) -> None:
    planted, own = program(tmp_path / "ws/.venv/bin"), program(tmp_path / "own")
    environ = {"PATH": f"{planted.parent}:{own.parent}"}
    assert find_bwrap(environ=environ) == str(planted)
    assert find_bwrap(environ=environ, untrusted=[str(tmp_path / "ws")]) == str(own)
    (tmp_path / "links").mkdir()
    (tmp_path / "links/bwrap").symlink_to(planted)
    environ = {"PATH": f"{tmp_path / 'links'}:{own.parent}"}
    assert find_bwrap(environ=environ, untrusted=[str(tmp_path / "ws")]) == str(own)
    with pytest.raises(BackendUnavailable, match="written by the worker"):
        find_bwrap(environ={}, explicit=str(planted), untrusted=[str(tmp_path / "ws")])


@pytest.mark.parametrize(
    ("mode", "words", "check"),
    [(0o757, "written by everybody", "bwrap"), (0o4755, "setuid", "bwrap-setuid")],
)
def test_a_bwrap_that_is_not_to_be_trusted_is_refused(tmp_path: Path, mode: int, words: str, check: str) -> None:
    path = program(tmp_path, mode)
    with pytest.raises(BackendUnavailable, match=words) as caught:
        find_bwrap(environ={}, explicit=str(path))
    assert caught.value.check == check


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_bwrap_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path)
    os.chown(path, 1, 1)
    with pytest.raises(BackendUnavailable, match="neither to root nor to you"):
        find_bwrap(environ={"PATH": str(tmp_path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to a group it is not in")
@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_a_bwrap_that_a_group_can_replace_is_refused_when_somebody_is_in_the_group(tmp_path: Path, what: str) -> None:
    path = program(tmp_path / "bin", 0o755)
    place = path if what == "the file" else path.parent
    for group, words in ((1, "written by daemon of the group daemon"), (54321, "group 54321, which has no name")):
        os.chown(place, 0, group)
        place.chmod(0o775)
        with pytest.raises(BackendUnavailable, match=f"{place} can be .*{words}.*chmod g-w {place}"):
            find_bwrap(environ={}, explicit=str(path))
    os.chown(place, 0, grp.getgrnam("staff").gr_gid)  # as Debian has /usr/local
    assert find_bwrap(environ={}, explicit=str(path)) == str(path)


def test_who_is_in_a_group_is_known_of_this_machines_own_groups_only(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.geteuid())
    group = next(one for one in grp.getgrall()[::-1] if one.gr_gid != me.pw_gid)
    file = tmp_path / "group"
    file.write_text(f"{group.gr_name}:x:{group.gr_gid}:\n")
    listed = others_in(group.gr_gid, [str(tmp_path / "none"), str(file)])
    assert listed == others_in(group.gr_gid)
    file.write_text("other:x:424242:\n")  # as where a directory has the group
    for gid, own in ((group.gr_gid, False), (me.pw_gid, grp.getgrgid(me.pw_gid).gr_name == me.pw_name)):
        said = others_in(gid, [str(file)])
        assert said == "" if own else "whoever a directory of users has" in said


def test_a_bwrap_in_a_folder_that_others_can_write_is_refused_unless_that_is_sticky_or_a_group_of_ones_own(
    tmp_path: Path,
) -> None:
    path = program(tmp_path / "bin", 0o755)
    path.parent.chmod(0o777)
    with pytest.raises(BackendUnavailable, match=f"{path.parent} can be written by everybody.*chmod o-w {path.parent}"):
        find_bwrap(environ={}, explicit=str(path))
    for mode in (0o1777, 0o775):
        path.parent.chmod(mode)
        assert find_bwrap(environ={}, explicit=str(path)) == str(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_bwrap_of_roots_below_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = program(tmp_path / "theirs/bin", 0o755)
    os.chown(tmp_path / "theirs", 1, 1)
    with pytest.raises(BackendUnavailable, match=f"{path} can be replaced by uid 1, whose {path.parent.parent} is"):
        find_bwrap(environ={}, explicit=str(path))


def test_no_bwrap_at_all_says_how_to_install_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep_bwrap.find.bundled_bwrap", lambda: None)
    with pytest.raises(BackendUnavailable, match="not installed; `apt install bubblewrap`"):
        find_bwrap(environ={"PATH": str(tmp_path)})
