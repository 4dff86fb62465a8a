"""Each layer taken away from the production launch, one at a time, is noticed from inside before the worker runs."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from skep_bwrap import BackendUnavailable
from skep_bwrap.seccomp import ARCHES, root_filter
from skep_bwrap.spawn import Ended
from skep_netshim import SHIM
from skep_policy import Rules, replace
from skep_policy.boundary import Access, PathRule
from skep_policy.launch import Launch

from .box import Box, go, without

pytestmark = [pytest.mark.sandbox, pytest.mark.guarantee("start-attested")]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the kernel keeps this from ordinary users")


def refused(launch: Launch, words: str, **how: object) -> None:
    with pytest.raises(BackendUnavailable, match=words) as caught:
        go(launch, **how)
    assert caught.value.check == "attestation"


def told(launch: Launch, change: Callable[[list[bytes]], list[bytes]]) -> Launch:
    """The launch with the shim told something else."""
    records = launch.config.split(b"\0")[:-2]
    return replace(launch, config=b"".join(record + b"\0" for record in change(records)) + b"\0")


def test_the_launch_as_it_is_runs_and_says_what_was_tried(either: Box) -> None:
    ended = go(either.launch())
    assert ended.exit_code == 0 and ended.notes == {}
    assert set(ended.attestation) == {
        *("processes", "namespaces", "capabilities", "seccomp", "writes", "hidden", "sockets"),
        *("network", "devices", "kernel", "apart", "descriptors", "mounts"),
    }


@pytest.mark.parametrize("name", ["ipc", "uts", "net"])
def test_a_namespace_that_is_the_hosts(either: Box, name: str) -> None:
    refused(without(either.launch(), f"--unshare-{name}"), f"the {name} namespace is the host's")


def test_the_cgroup_namespace_of_the_host(either: Box) -> None:
    refused(without(either.launch(), "--unshare-cgroup-try"), "the cgroup namespace is the host's")


def test_processes_of_the_host(either: Box) -> None:
    refused(
        without(either.launch(), "--unshare-pid"), "processes of others are visible|the pid namespace is the host's"
    )


@as_root
def test_the_user_namespace_of_the_host(either: Box) -> None:
    launch = without(without(either.launch(), "--unshare-user"), "--uid", "0", "--gid", "0")
    refused(launch, "the user namespace is the host's")


def test_the_proc_of_the_host(either: Box) -> None:
    refused(without(either.launch(), "--proc", "/proc", instead=("--ro-bind", "/proc", "/proc")), "/proc|processes")


@as_root
def test_capabilities_that_were_kept(either: Box) -> None:
    launch = either.launch(how={"apart": False})
    assert go(launch).exit_code == 0
    refused(without(launch, "--cap-drop", "ALL", instead=("--cap-add", "ALL")), "Cap")


def test_a_worker_that_was_not_set_apart(either: Box) -> None:
    refused(told(either.launch(), lambda records: [r for r in records if r != b"apart=1"]), "CapEff|CapPrm|uid")


def test_a_seccomp_filter_that_is_missing(either: Box) -> None:
    refused(without(either.launch(), "--seccomp", "{fd:seccomp}"), "no seccomp filter|filter is another than ours")


@as_root
def test_a_user_namespace_root_could_make(either: Box) -> None:
    launch = either.launch()
    own = b"filter=" + root_filter(ARCHES[os.uname().machine]).hex().encode()
    refused(told(launch, lambda records: [r for r in records if r != own]), "root could make a user namespace")


def test_a_strict_filter_that_is_missing(either: Box) -> None:
    launch = either.launch(strict=True)
    assert go(launch).exit_code == 0
    refused(told(launch, lambda records: [r for r in records if not r.startswith(b"filter=")]), "strict filter")


def test_a_filter_that_is_missing_once_every_port_is_led_to_the_proxy(either: Box) -> None:
    def launch(change: Callable[[list[bytes]], list[bytes]]) -> Ended:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(b"go\n")
            rules = Rules.build(["a.example.com"])
            return go(told(either.launch(rules=rules, how={"proxied": True}), change), proxy=theirs)

    assert launch(lambda records: records).notes == {}
    with pytest.raises(BackendUnavailable, match="nf_tables"):
        launch(lambda records: [record for record in records if not record.startswith(b"filter=")])


def test_a_root_that_is_writable(either: Box) -> None:
    refused(without(either.launch(), "--ro-bind", "/", "/", instead=("--bind", "/", "/")), "/ is not read-only")


def test_a_hidden_folder_and_a_hidden_file_that_can_be_read(either: Box) -> None:
    secret, file = either.out / "secret", either.out / "file"
    secret.mkdir()
    file.write_text("hush")
    hides = (PathRule(str(secret), Access.HIDDEN, "dir"), PathRule(str(file), Access.HIDDEN, "file"))
    launch = either.launch(hides=hides)
    assert go(launch).exit_code == 0
    refused(uncovered(launch, "dir", secret), f"{secret} can be read")
    refused(uncovered(launch, "file", file), f"{file} can be read")


@pytest.mark.parametrize("kind", ["dir", "file"])
def test_a_protected_path_that_is_writable(either: Box, kind: str) -> None:
    path = either.ws / "kept"
    path.mkdir() if kind == "dir" else path.write_text("x")
    launch = either.launch(protects=(PathRule(str(path), Access.READ, kind),))  # type: ignore[arg-type]
    assert go(launch).exit_code == 0
    weaker = uncovered(launch, "keep", path) if kind == "file" else without(launch, "--ro-bind", str(path), str(path))
    refused(weaker, f"{path} is not read-only")


def uncovered(launch: Launch, kind: str, path: Path | str) -> Launch:
    cover = os.fsencode(f"cover={kind} {path}")
    assert cover in launch.config.split(b"\0")
    return told(launch, lambda records: [record for record in records if record != cover])


def test_a_socket_of_the_host_that_answers(either: Box) -> None:
    path = either.out / "d.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        launch = either.launch()
        assert go(launch).attestation["sockets"] != "0"
        refused(uncovered(launch, "socket", path), f"{path} answers")


def test_a_socket_of_the_host_in_a_folder_that_could_be_opened(either: Box) -> None:
    path = either.ws / "closed/d.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.parent.chmod(0)
        try:
            launch = either.launch()
            assert go(launch).exit_code == 0
            refused(uncovered(launch, "socket", path), f"folder of the host's socket {path} could be opened")
        finally:
            path.parent.chmod(0o700)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_the_host_of_another_kind(either: Box, kind: int) -> None:
    path = either.out / "d.sock"
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            server.listen()
        refused(uncovered(either.launch(), "socket", path), f"{path} can be reached")


def test_a_temporary_folder_that_is_the_hosts(either: Box, tmp_path: Path) -> None:
    path = Path(os.path.realpath(tmp_path)) / "d.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        refused(without(either.launch(), "--perms", "1777", "--tmpfs", "/tmp"), f"{path} answers")


def test_devices_of_the_host(either: Box) -> None:
    launch = without(either.launch(), "--perms", "1777", "--tmpfs", "/dev/shm")
    launch = without(launch, "--dev", "/dev", instead=("--dev-bind", "/dev", "/dev"))
    refused(launch, "/dev.* of the host is there|/dev/null was not put there|/dev/null: Permission denied")


@pytest.mark.parametrize("folder", ["/dev/pts", "/dev/shm"])
def test_terminals_and_shared_memory_of_the_host(either: Box, folder: str) -> None:
    launch = without(
        either.launch(), "--remount-ro", "/dev", instead=("--dev-bind", folder, folder, "--remount-ro", "/dev")
    )
    refused(launch, f"{folder} of the host is there|{folder} .*can be written")


def test_a_dev_that_is_writable(either: Box) -> None:
    refused(without(either.launch(), "--remount-ro", "/dev"), "/dev is not read-only")


@as_root
def test_kernel_settings_that_can_be_written(either: Box) -> None:
    refused(uncovered(either.launch(), "knob", "/proc/sys"), "/proc/sys is not read-only")


@as_root
def test_device_nodes_that_are_not_the_sandboxs(either: Box) -> None:
    refused(told(either.launch(), lambda records: [*records, b"device=/usr"]), "/usr was not put there")


def test_a_descriptor_that_would_reach_the_worker(either: Box) -> None:
    launch = either.launch()
    refused(replace(launch, files={**launch.files, "extra": b"x"}), "descriptor .* would reach")


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "socket"])
def test_a_standard_descriptor_that_is_a_file_of_the_host(either: Box, kind: str) -> None:
    path = either.out / "f"
    ends = socket.socketpair()
    match kind:
        case "file":
            path.write_text("x")
            fd = os.open(path, os.O_RDONLY)
        case "folder":
            fd = os.open(either.out, os.O_RDONLY)
        case "fifo":
            os.mkfifo(path)
            fd = os.open(path, os.O_RDWR)
        case _:
            fd = os.dup(ends[0].fileno())
    try:
        for place in ("stdin", "stdout", "stderr"):
            # Python itself does not start with a folder as its standard input.
            with pytest.raises(BackendUnavailable, match=r"descriptor .* is a file of the host|[Ii]s a directory"):
                go(either.launch(), **{place: fd})
    finally:
        os.close(fd)
        for end in ends:
            end.close()


def test_another_uid_than_the_callers(either: Box) -> None:
    other = b"uid=%d" % (os.getuid() + 1)
    launch = either.launch(how={"apart": False})
    refused(told(launch, lambda records: [other if r.startswith(b"uid=") else r for r in records]), "the uid is")


def test_a_folder_that_cannot_be_entered(either: Box) -> None:
    refused(either.launch(cwd=str(either.ws / "absent")), "cannot enter")


NO_WEAKENING = {
    "--die-with-parent": "the guardian ends what is left",
    "--cap-drop ALL": "the shim drops every capability of its own",
    "--uid 0": "it is 0 for root in any case",
    "--gid 0": "it is 0 for root in any case",
    "--uid {uid}": "it is the caller's in any case",
    "--gid {gid}": "it is the caller's in any case",
    "--unshare-user": "bwrap makes one for an ordinary user in any case",
    "--tmpfs /dev/shm": "the folder is there, and closed",
    "--ro-bind /dev/null /proc/kmsg": "the kernel wants a capability",
    "--ro-bind-try /proc/irq /proc/irq": "bwrap covers what root could write there",
    "--ro-bind-try /proc/bus /proc/bus": "bwrap covers what root could write there",
    "--ro-bind-try /proc/sysrq-trigger /proc/sysrq-trigger": "bwrap covers it where root could write it",
    "--bind {ws} {ws}": "less can be written then",
    "file /proc/kmsg": "the kernel wants a capability",
    "knob /proc/irq": "bwrap covers what root could write there",
    "knob /proc/bus": "bwrap covers what root could write there",
    "knob /proc/sysrq-trigger": "bwrap covers it where root could write it",
}


def options(launch: Launch) -> list[list[str]]:
    """bwrap's options with their values; a mode or a size goes with the mount it is for."""
    found: list[list[str]] = []
    before: list[str] = []
    for word in launch.args:
        if word.startswith("--"):
            found.append([])
        found[-1].append(word)
    joined: list[list[str]] = []
    for option in found:
        if option[0] in ("--perms", "--size"):
            before += option
        else:
            joined.append([*before, *option])
            before = []
    return joined


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "not apart"])
def test_every_option_of_bwrap_and_every_cover_is_missed_when_it_is_left_out(box: Box, apart: bool) -> None:
    """Either the launch does not come about, or the table above says why the boundary is no weaker without it."""
    for folder in (box.ws / "kept", box.ws / "deep/kept", box.ws / "hidden", box.out / "hidden"):
        folder.mkdir(parents=True)
    for file in (box.ws / "kept.txt", box.out / "hidden.txt"):
        file.write_text("x")
    protects = (
        PathRule(str(box.ws / "kept"), Access.READ, "dir"),
        PathRule(str(box.ws / "deep/kept"), Access.READ, "dir"),
        PathRule(str(box.ws / "kept.txt"), Access.READ, "file"),
    )
    hides = (
        PathRule(str(box.ws / "hidden"), Access.HIDDEN, "dir"),
        PathRule(str(box.out / "hidden"), Access.HIDDEN, "dir"),
        PathRule(str(box.out / "hidden.txt"), Access.HIDDEN, "file"),
    )
    launch = box.launch(protects=protects, hides=hides, how={"apart": apart})
    assert go(launch).exit_code == 0
    excused = {words.format(ws=box.ws, uid=os.getuid(), gid=os.getgid()) for words in NO_WEAKENING}
    unnoticed: list[str] = []
    for option in options(launch):
        text = " ".join(option[option.index("--tmpfs") :] if "--tmpfs" in option else option)
        if text in excused or (option[0] == "--ro-bind-try" and not os.path.exists(option[1])):
            continue
        try:
            go(without(launch, *option))
            unnoticed.append(text)
        except BackendUnavailable:
            pass
    for text in [record[6:].decode() for record in launch.config.split(b"\0") if record.startswith(b"cover=")]:
        kind, _, path = text.partition(" ")
        if text in excused or kind == "socket" or not os.path.exists(path):
            continue
        try:
            go(uncovered(launch, kind, path))
            unnoticed.append(text)
        except BackendUnavailable:
            pass
    assert unnoticed == []


def test_a_filter_that_is_another(either: Box) -> None:
    launch = either.launch()
    allow_all = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    refused(replace(launch, files={**launch.files, "seccomp": allow_all}), "filter is another than ours")


def test_one_more_root_than_the_boundary_has(either: Box) -> None:
    more = ("--bind", str(either.out), str(either.out), "--seccomp")
    refused(without(either.launch(), "--seccomp", instead=more), f"{either.out} is a mount that can be written to")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody without capabilities")
@pytest.mark.parametrize("weak", [True, False])
def test_new_privileges_that_could_be_gained(weak: bool) -> None:
    """bwrap denies them always, and so does the shim: the check alone is tried."""
    code = f"""
import ctypes, os, sys
sys.path.insert(0, {os.path.dirname(SHIM)!r})
import shim
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
{"" if weak else "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)"}
try:
    print(shim.attest_privileges(shim.Config(b"uid=65534\\0")))
except shim.Refused as refusal:
    print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ("new privileges can be gained\n" if weak else "none\n")
