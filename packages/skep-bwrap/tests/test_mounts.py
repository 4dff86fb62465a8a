"""What a worker sees, really mounted: roots anywhere, many covers, little to read, what the host mounts later."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from skep_bwrap import HostFacts, compile
from skep_policy import replace
from skep_policy.boundary import Access, PathRule
from skep_policy.rules import Rules

from .box import Box, go

pytestmark = pytest.mark.sandbox
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")


def rule(path: Path | str, access: Access, kind: str = "dir") -> PathRule:
    return PathRule(str(path), access, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm", "/run"])
def test_a_root_below_a_private_folder_is_the_hosts_and_the_rest_is_not(either: Box, place: str) -> None:
    if not os.access(place, os.W_OK):
        pytest.skip(f"{place} is not ours to write")
    folder = Path(tempfile.mkdtemp(dir=place))
    beside = Path(tempfile.mkdtemp(dir=place))
    try:
        (folder / "kept").mkdir()
        protects = (rule(folder / "kept", Access.READ),)
        script = f"echo ok > made && cat made; ls -d {beside}; touch kept/x"
        result = either.sh(script, roots=(rule(folder, Access.WRITE),), cwd=str(folder), protects=protects)
        assert result.out == "ok\n" and "Read-only" in result.err and "No such file" in result.err
        assert (folder / "made").read_text() == "ok\n"
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(beside)


def test_covers_hold(either: Box) -> None:
    covers_hold(either, 20)


def test_many_covers_hold_like_few(box: Box) -> None:
    """The shim lays them, whichever bwrap it is started by."""
    covers_hold(box, 3000)


def covers_hold(box: Box, count: int) -> None:
    hides: list[PathRule] = []
    protects: list[PathRule] = []
    for number in range(count):
        folder = box.ws / f"d{number % 40}/e"
        folder.mkdir(parents=True, exist_ok=True)
        secret, hidden, kept = folder / f"s{number}", folder / f"h{number}", folder / f"k{number}"
        secret.write_text("hush")
        kept.write_text("kept")
        hides.append(rule(secret, Access.HIDDEN, "file"))
        protects.append(rule(kept, Access.READ, "file"))
        if number % 10 == 0:
            hidden.mkdir()
            (hidden / "f").write_text("hush")
            hides.append(rule(hidden, Access.HIDDEN))
    script = """
import os, sys
def outcome(what, *arguments):
    try:
        what(*arguments)
        return "ok"
    except OSError as error:
        return os.strerror(error.errno)
found = set()
for root, folders, files in os.walk("."):
    for name in (*folders, *files):
        path = os.path.join(root, name)
        if name[0] == "s": found.add(("read", outcome(open, path)))
        if name[0] == "s": found.add(("write", outcome(open, path, "r+")))
        if name[0] == "h": found.add(("list", outcome(os.listdir, path)))
        if name[0] == "h": found.add(("make", outcome(open, path + "/x", "x")))
        if name[0] == "k": found.add(("change", outcome(open, path, "a")))
        if name[0] == "k": found.add(("see", outcome(open, path)))
        if name[0] == "e": found.add(("move", outcome(os.rename, path, path + "x")))
found.add(("own", outcome(open, "d1/e/own", "w")))
print(sorted(found))
"""
    result = box.python(script, hides=tuple(hides), protects=tuple(protects))
    assert result.code == 0, result.err
    assert dict(eval(result.out)) == {
        "read": "Permission denied",
        "write": "Permission denied",
        "list": "Permission denied",
        "make": "Permission denied",
        "change": "Read-only file system",
        "see": "ok",
        "move": "Device or resource busy",
        "own": "ok",
    }
    assert (box.ws / "d1/e/own").exists() and (box.ws / "d0/e/s0").read_text() == "hush"


def test_a_copy_stands_at_the_place_of_the_original(box: Box) -> None:
    original, copy = box.home / "repo", box.out / "copy"
    original.mkdir()
    (original / "f").write_text("original")
    (copy / "kept").mkdir(parents=True)
    (copy / "f").write_text("copy")
    result = box.sh(
        f"cat {original}/f; echo new > {original}/made; touch {original}/kept/x || echo kept",
        roots=(rule(original, Access.WRITE),),
        protects=(rule(original / "kept", Access.READ),),
        mapped={str(original): str(copy)},
        cwd=str(original),
    )
    assert result.out == "copykept\n"
    assert (copy / "made").exists() and not (original / "made").exists()


def test_a_hide_over_the_parent_of_a_root_leaves_the_root(either: Box) -> None:
    (either.home / "other").write_text("hush")
    result = either.sh(f"echo ok > f; cat f; cat {either.home}/other; ls {either.home}; echo x > {either.home}/y",
                       hides=(rule(either.home, Access.HIDDEN),))  # fmt: skip
    assert result.out == "ok\n" and "hush" not in result.err
    assert not (either.home / "y").exists()


def minimal() -> tuple[PathRule, ...]:
    facts = HostFacts.gather()
    paths = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    return tuple(rule(path, Access.READ) for path in sorted({*paths, facts.prefix}))


def test_little_can_be_read_and_programs_work(either: Box) -> None:
    (either.out / "other").write_text("hush")
    how: dict[str, Any] = {"read": "minimal", "reads": minimal()}
    result = either.sh(f"ls / ; cat {either.out}/other; touch /x {either.home}/y; echo made > f; cat f", **how)
    seen = set(result.out.split())
    assert "made" in seen and "hush" not in seen and not seen & {"boot", "srv", "mnt", "media"}
    assert "Read-only" in result.err and "No such file" in result.err
    for argv in (["python3", "-c", "import ssl, sqlite3; print('fine')"], ["git", "--version"], ["node", "-v"]):
        if shutil.which(argv[0]):
            assert either.run(argv, **how).code == 0, argv
    assert go(either.launch(**how)).attestation["writes"] != "0"


def test_the_interpreter_is_there_although_what_is_above_it_is_hidden(either: Box) -> None:
    facts = HostFacts.gather()
    above = os.path.dirname(facts.prefix)
    if above == "/":
        pytest.skip("this Python is the system's")
    result = either.sh(f"ls {above}; echo ran", hides=(rule(above, Access.HIDDEN),))
    assert result.out == "ran\n"


def test_skeps_own_code_inside_a_root_is_read_only(box: Box) -> None:
    code = box.ws / "venv/lib/skep_cli"
    code.mkdir(parents=True)
    (code / "main.py").write_text("x")
    facts = replace(HostFacts.gather(), code=(str(box.ws / "venv"),))
    script = "echo bad > venv/lib/skep_cli/main.py; mv venv other; echo ok > fine"
    ended = go(compile(box.boundary(), ["sh", "-c", script], facts=facts, bwrap=box.bwrap))
    assert ended.exit_code == 0 and (code / "main.py").read_text() == "x" and (box.ws / "fine").exists()


@pytest.fixture
def server(box: Box) -> Iterator[Path]:
    path = box.out / "d.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield path


CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect({!r})"


def test_one_socket_let_in_is_let_in_and_another_is_not(box: Box, server: Path) -> None:
    assert "ConnectionRefused" in box.python(CONNECT.format(str(server))).err
    assert box.python(CONNECT.format(str(server)), sockets=(str(server),)).code == 0


def test_a_socket_in_a_writable_root_is_covered_and_stays_where_it_is(box: Box) -> None:
    path = box.ws / "d.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert "ConnectionRefused" in box.python(CONNECT.format(str(path))).err
        assert "busy" in box.sh("rm -f d.sock; mv d.sock e.sock").err
    assert path.is_socket()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees into folders that are closed to it in a sandbox")
def test_a_socket_in_a_closed_folder_of_another_user_needs_no_cover(box: Box) -> None:
    folder = box.out / "theirs"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "d.sock"))
        server.listen()
        folder.chmod(0o700)
        os.chown(folder, 12345, 12345)
        result = box.python(CONNECT.format(str(folder / "d.sock")))
    assert "PermissionError" in result.err


@pytest.mark.parametrize("closed", ["theirs", "theirs/deeper"])
def test_a_closed_folder_of_ours_with_a_socket_in_it_stays_closed(either: Box, closed: str) -> None:
    path = either.ws / "theirs/deeper/d.sock"
    path.parent.mkdir(parents=True)
    opened = f"import os; os.chmod('{closed}', 0o700); {CONNECT.format(str(path))}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        (either.ws / closed).chmod(0)
        try:
            assert "Read-only file system" in either.python(opened).err
        finally:
            (either.ws / closed).chmod(0o700)
        assert either.python(opened, sockets=(str(path),)).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot give folders away")
def test_a_hide_in_a_closed_folder_of_another_user_is_laid_over_the_folder(either: Box) -> None:
    folder = either.out / "theirs"
    (folder / "home/.ssh").mkdir(parents=True)
    (folder / "home/.ssh/key").write_text("hush")
    (folder / "home").chmod(0o700)
    os.chown(folder / "home", 12345, 12345)
    hides = (rule(folder / "home/.ssh", Access.HIDDEN), rule(folder / "home/absent", Access.HIDDEN, "absent"))
    result = either.sh(f"cat {folder}/home/.ssh/key; ls {folder}", hides=hides)
    assert result.out == "home\n" and "Permission denied" in result.err
    assert f"cover='dir {folder}/home'" in result.outcome.evidence


NETWORKED = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_socket_of_a_daemon_in_another_network_namespace_is_covered(box: Box) -> None:
    path = box.out / "d.sock"
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    argv = [*unshare, sys.executable, "-c", NETWORKED, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None and daemon.stdout.readline() == b"up\n"
        assert str(path) not in Path("/proc/net/unix").read_text()
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(path))
        assert "ConnectionRefused" in box.python(CONNECT.format(str(path))).err
        daemon.communicate()


def test_abstract_sockets_are_out_of_reach_even_with_the_hosts_network(either: Box) -> None:
    name = f"\0skep-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as tcp:
        server.bind(name)
        server.listen()
        everything = Rules.build(["*"])
        result = either.python(CONNECT.format(name), rules=everything)
        assert result.outcome.layers["network"] is False
        if result.outcome.layers["sockets"] is True:
            assert "PermissionError" in result.err
        else:
            assert "abstract sockets of the host can be reached" in str(result.outcome.layers["sockets"])
        address = tcp.getsockname()
        assert either.python(f"import socket; socket.create_connection({address!r})", rules=everything).code == 0
        assert "ConnectionRefused" in either.python(CONNECT.format(name)).err
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(name)


@pytest.mark.parametrize(
    "node", ["/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/rtc0", "/dev/vda"]
)
def test_a_device_is_let_in_by_name(box: Box, node: str) -> None:
    if not os.access(node, os.R_OK):
        pytest.skip(f"there is no {node} for us")
    assert box.sh(f"test -e {node}").code == 1
    result = box.sh(f"test -r {node} && chmod 600 {node}", devices=(node,))
    assert "Read-only" in result.err or os.geteuid() != 0
    assert box.sh(f"test -r {node}", devices=(node,)).code == 0


LATER = """
import os, subprocess, sys, threading, time
from pathlib import Path
sys.path.insert(0, {folder!r})
from box import Box
box = Box(Path({base!r}), {bwrap!r})
place = box.out / "later"
place.mkdir()
Path(place / "below").write_text("below")
(box.ws / "go").mkdir()
def mount():
    while not (box.ws / "go/ready").exists(): time.sleep(0.01)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(place)], check=True)
    Path(place / "marker").write_text("host")
    (box.ws / "go/mounted").touch()
threading.Thread(target=mount).start()
script = "touch go/ready; while ! test -e go/mounted; do sleep 0.02; done; ls PLACE; echo bad > PLACE/marker"
script = script.replace("PLACE", str(place))
result = box.sh(script)
print(result.out.strip(), Path(place / "marker").read_text(), "Read-only" in result.err)
subprocess.run(["umount", str(place)], check=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount on the host")
def test_what_the_host_mounts_later_does_not_appear_inside(either: Box) -> None:
    base = Path(tempfile.mkdtemp(dir=either.out))
    code = LATER.format(folder=str(Path(__file__).parent), base=str(base), bwrap=either.bwrap)
    argv = ["unshare", "-m", "--propagation", "shared", sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "below host True\n", done.stderr
