"""On a Mac: network, services, processes and tools. Addresses are raw, so that no resolver decides a test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_policy.boundary import Access, Limits, PathRule
from skep_seatbelt import Proxy, collect
from skep_seatbelt.channels import MARKER
from skep_seatbelt.guardian import members

from .mac import Mac, mac, only_on_a_mac, outside

__all__ = ["mac"]
pytestmark = only_on_a_mac
DENIED = ("EPERM", "EACCES")


@pytest.fixture
def server() -> Iterator[int]:
    """A listener on every address of the machine, both families."""
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64) as sock:
        yield sock.getsockname()[1]


@pytest.fixture
def other() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        return sock.getsockname()[0]


def test_the_proxys_port_and_nothing_else(mac: Mac, server: int, other: int):
    said = mac.ask(
        f"""
        v4, v6 = socket.AF_INET, socket.AF_INET6
        answers["proxy"] = says(lambda: connect(v4, ("127.0.0.1", {server})))
        answers["proxy v6"] = says(lambda: connect(v6, ("::1", {server})))
        answers["other"] = says(lambda: connect(v4, ("127.0.0.1", {other})))
        answers["lan"] = says(lambda: connect(v4, ({own_address()!r}, {server})))
        answers["world"] = says(lambda: connect(v4, ("192.0.2.1", 443)))
        answers["world v6"] = says(lambda: connect(v6, ("2001:db8::1", 443)))
        udp = socket.socket(v4, socket.SOCK_DGRAM)
        answers["udp"] = says(lambda: udp.sendto(b"x", ("192.0.2.1", 53)))
        answers["bind"] = says(lambda: socket.create_server(("127.0.0.1", 0)))
        answers["vsock"] = says(lambda: socket.socket(40, socket.SOCK_STREAM))
        """,
        allow=["example.com"],
        proxy=Proxy(server, "t"),
    )
    assert said.pop("proxy") == "ok"
    said.pop("proxy v6")
    assert all(answer in DENIED or (name == "vsock" and answer != "ok") for name, answer in said.items()), said


def test_nothing_is_reached_without_a_network(mac: Mac, server: int):
    said = mac.ask(f'answers["proxy"] = says(lambda: connect(socket.AF_INET, ("127.0.0.1", {server})))')
    assert said["proxy"] in DENIED


def test_the_loopback_by_localhost_star_and_servers_by_the_operators_word(mac: Mac, other: int):
    script = f"""
        answers["host"] = says(lambda: connect(socket.AF_INET, ("127.0.0.1", {other})))
        answers["world"] = says(lambda: connect(socket.AF_INET, ("192.0.2.1", 443)))
        def serve():
            server = socket.create_server(("127.0.0.1", 0))
            connect(socket.AF_INET, server.getsockname())
        answers["server"] = says(serve)
    """
    said = mac.ask(script, allow=["localhost:*"], proxy=Proxy(other, "t"))
    assert said["host"] == "ok" and said["world"] in DENIED and said["server"] in DENIED, said
    said = mac.ask(script, allow=["localhost:*"], proxy=Proxy(other, "t"), listen=True)
    assert said["server"] == "ok" and said["world"] in DENIED, said


def test_unix_sockets_inside_and_those_of_the_host(mac: Mac, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(mac.repo)
    inner = socket.socket(socket.AF_UNIX)
    inner.bind("inner.sock")
    inner.listen()
    monkeypatch.chdir(mac.outside)
    with inner, socket.socket(socket.AF_UNIX) as host, socket.socket(socket.AF_UNIX) as agent:
        host.bind("host.sock")
        host.listen()
        agent.bind("granted.sock")
        agent.listen()
        said = mac.ask(
            f"""
            os.chdir({str(mac.outside)!r})
            answers["host"] = says(lambda: connect(socket.AF_UNIX, "host.sock"))
            answers["granted"] = says(lambda: connect(socket.AF_UNIX, "granted.sock"))
            answers["bind out"] = says(lambda: socket.socket(socket.AF_UNIX).bind("new.sock"))
            for path in ("/var/run/docker.sock", os.path.expanduser("~/.docker/run/docker.sock")):
                answers[path] = says(lambda: connect(socket.AF_UNIX, path))
            answers["resolver"] = says(lambda: connect(socket.AF_UNIX, "/var/run/mDNSResponder"))
            os.chdir({str(mac.repo)!r})
            own = socket.socket(socket.AF_UNIX)
            own.bind("own.sock")
            own.listen()
            answers["own"] = says(lambda: connect(socket.AF_UNIX, "own.sock"))
            os.symlink({str(mac.outside / "host.sock")!r}, "link.sock")
            answers["host inside"] = says(lambda: connect(socket.AF_UNIX, "inner.sock"))
            answers["link"] = says(lambda: connect(socket.AF_UNIX, "link.sock"))
            """,
            sockets=(str(mac.outside / "granted.sock"),),
        )
    assert said.pop("own") == said.pop("granted") == "ok"
    assert all(answer in (*DENIED, "ENOENT") for answer in said.values()), said


def test_names_are_resolved_by_nobody(mac: Mac):
    script = """
        answers["dscacheutil"] = run("/usr/bin/dscacheutil", "-q", "host", "-a", "name", "example.com")[1]
        answers["dns-sd"] = run("/bin/sh", "-c", "dns-sd -t 3 -G v4 example.com; true")[1]
        def resolve():
            try:
                return [str(socket.getaddrinfo("example.com", 80)[0][4][0])]
            except socket.gaierror:
                return "none"
        answers["getaddrinfo"] = resolve()
    """
    said = mac.ask(script, allow=["example.org"], proxy=Proxy(_listener(), "t"))
    assert "ip_address" not in said["dscacheutil"] and "Add" not in said["dns-sd"] and said["getaddrinfo"] == "none"
    try:
        socket.getaddrinfo("example.com", 80)
    except OSError:
        return  # this machine resolves nothing, so the twin cannot be shown
    assert mac.ask(script, allow=["*"])["getaddrinfo"] != "none"


def _listener() -> int:
    sock = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: [sock.accept() for _ in range(8)], daemon=True).start()
    return sock.getsockname()[1]


def test_the_keychain_is_out_of_reach(mac: Mac):
    chain = str(mac.repo / "test.keychain-db")
    outside("/usr/bin/security", "create-keychain", "-p", "p", chain)
    outside("/usr/bin/security", "add-generic-password", "-a", "a", "-s", "skep-test", "-w", "hush", "-A", chain)
    ask = ("/usr/bin/security", "find-generic-password", "-s", "skep-test", "-w", chain)
    try:
        assert "hush" in outside(*ask).stdout
        assert "hush" not in mac.run(list(ask))
    finally:
        outside("/usr/bin/security", "delete-keychain", chain)


def test_the_clipboard_is_out_of_reach(mac: Mac):
    subprocess.run(["/usr/bin/pbcopy"], input=b"hush-clip", check=True, timeout=60)
    assert outside("/usr/bin/pbpaste").stdout == "hush-clip"
    assert "hush-clip" not in mac.run(["/usr/bin/pbpaste"])


def test_nobody_starts_a_program_outside_for_the_worker(mac: Mac):
    marker = mac.outside / "started"
    label = f"skep.test.{os.getpid()}"
    command = mac.repo / "run.command"
    command.write_text(f"#!/bin/sh\ntouch {str(marker)!r}\n")
    command.chmod(0o755)
    said = mac.ask(f"""
        answers["launchctl"] = run("/bin/launchctl", "submit", "-l", {label!r}, "--", {str(command)!r})
        answers["open"] = run("/usr/bin/open", "-g", {str(command)!r})
        answers["osascript"] = run("/usr/bin/osascript", "-e", 'tell application "Finder" to get name of startup disk')
        answers["at"] = run("/bin/sh", "-c", "echo {command!s} | at now")
        answers["crontab"] = run("/bin/sh", "-c", "echo '* * * * * {command!s}' | crontab -")
    """)
    time.sleep(5)
    outside("/bin/launchctl", "remove", label)
    assert not marker.exists(), said
    assert all(answer[0] != 0 for answer in said.values()), said
    assert outside("/bin/launchctl", "submit", "-l", label + "x", "--", str(command)).returncode == 0
    outside("/bin/launchctl", "remove", label + "x")
    assert outside("/usr/bin/osascript", "-e", "return 1").stdout == "1\n"


def test_preferences_of_the_user_are_not_written(mac: Mac):
    domain = f"skep.test.{os.getpid()}"
    mac.run(["/usr/bin/defaults", "write", domain, "key", "value"])
    assert "value" not in outside("/usr/bin/defaults", "read", domain).stdout
    outside("/usr/bin/defaults", "write", domain + "x", "key", "value")
    assert "value" in outside("/usr/bin/defaults", "read", domain + "x").stdout
    outside("/usr/bin/defaults", "delete", domain + "x")


READ_ENVIRONMENT = """
libc = ctypes.CDLL(None, use_errno=True)
def environment(pid):
    mib, size = (ctypes.c_int * 3)(1, 49, pid), ctypes.c_size_t(1 << 20)
    data = ctypes.create_string_buffer(1 << 20)
    libc.sysctl(mib, 3, data, ctypes.byref(size), None, 0)
    return data.raw
def shows(pid, text):
    return "read" if text in environment(pid) else "none"
"""


def test_processes_of_the_user_are_neither_signalled_nor_opened(mac: Mac):
    with subprocess.Popen(["/bin/sleep", "600"]) as victim:
        said = mac.ask(f"""
            answers["parent"] = says(lambda: os.kill(os.getppid(), 0))
            answers["victim"] = says(lambda: os.kill({victim.pid}, 9))
            child = subprocess.Popen(["/bin/sleep", "600"])
            answers["child"] = says(lambda: os.kill(child.pid, 15))
            child.wait()
            libc = ctypes.CDLL(None, use_errno=True)
            port = ctypes.c_uint()
            answers["task"] = libc.task_for_pid(libc.mach_task_self(), {victim.pid}, ctypes.byref(port))
        """)
        alive = victim.poll() is None
        victim.kill()
    assert alive and said["victim"] in DENIED and said["parent"] in DENIED and said["child"] == "ok"
    assert said["task"] != 0


def test_our_own_environment_is_not_there_to_be_read(mac: Mac):
    said = mac.ask(
        READ_ENVIRONMENT + f'''answers["ours"] = "read" if b"HOME=" in environment({os.getpid()}) else "none"'''
    )
    assert said["ours"] == "none"
    assert os.environ["HOME"] and "HOME=" in outside("/usr/bin/env").stdout


def test_environments_of_other_programs(mac: Mac):
    script = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "SKEP_SECRET": "hush-env"}) as victim:
        said = mac.ask(
            READ_ENVIRONMENT + f'''answers["other"] = "read" if b"hush-env" in environment({victim.pid}) else "none"'''
        )
        victim.kill()
    if said["other"] == "read":
        pytest.xfail("this system gives them out whatever the profile says; the README does too")


def test_python_workers_share_memory_and_locks(mac: Mac):
    program = mac.repo / "pool.py"
    program.write_text(
        textwrap.dedent("""
            from multiprocessing import Pool, Lock, shared_memory
            def double(x):
                return 2 * x
            if __name__ == "__main__":
                with Lock(), Pool(2) as pool:
                    assert pool.map(double, [1, 2]) == [2, 4]
                memory = shared_memory.SharedMemory(create=True, size=16)
                memory.close()
                memory.unlink()
                print("done")
        """)
    )
    assert "done" in mac.run([sys.executable, str(program)])


@pytest.mark.parametrize(
    "argv",
    [
        ["git", "status"],
        ["xcrun", "--find", "clang"],
        ["sh", "-c", "echo 'int main(void){return 0;}' > m.c && clang -fmodules -o m m.c && ./m"],
        ["sh", "-c", "mkdir -p p && cd p && swift package init --type executable && swift build --disable-sandbox"],
        ["getconf", "DARWIN_USER_TEMP_DIR"],
        ["sh", "-c", 'node -e \'require("os").cpus(); require("os").networkInterfaces()\''],
        ["sh", "-c", "id -un && ls -l ask.py"],
    ],
    ids=lambda argv: " ".join(argv)[:40],
)
def test_ordinary_tools_work(mac: Mac, argv: list[str]):
    words = argv[2].split() if argv[0] == "sh" else argv
    tool = next((word for word in words if word in ("git", "xcrun", "clang", "swift", "node")), None)
    if tool and not shutil.which(tool):
        pytest.skip(f"{tool} is not installed here")
    outside("git", "init", "-q", str(mac.repo))
    (mac.repo / "ask.py").write_text("")
    output = mac.run(argv, wall=300)
    assert mac.last and mac.last.exit_code == 0, output


def test_go_checks_certificates_only_with_the_granted_service(mac: Mac):
    if not shutil.which("go"):
        pytest.skip("go is not installed here")
    (mac.repo / "go.mod").write_text("module x\ngo 1.20\n")
    (mac.repo / "main.go").write_text(
        textwrap.dedent("""
            package main
            import ("crypto/x509"; "encoding/pem"; "fmt"; "os")
            func main() {
                data, _ := os.ReadFile(os.Args[1])
                block, _ := pem.Decode(data)
                cert, err := x509.ParseCertificate(block.Bytes)
                if err != nil { panic(err) }
                _, err = cert.Verify(x509.VerifyOptions{})
                fmt.Println("verdict:", err)
            }
        """)
    )
    roots = outside(
        "/usr/bin/security", "find-certificate", "-a", "-p", "/System/Library/Keychains/SystemRootCertificates.keychain"
    )
    (mac.repo / "root.pem").write_text(roots.stdout)
    built = subprocess.run(["go", "build", "-o", "x", "."], cwd=mac.repo, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    argv = [str(mac.repo / "x"), str(mac.repo / "root.pem")]
    assert "<nil>" in outside(*argv).stdout
    assert "<nil>" not in mac.run(argv)
    assert "<nil>" in mac.run(argv, services=["com.apple.trustd.agent"])


def test_a_sandbox_inside_a_sandbox_is_recognised(mac: Mac):
    output = mac.run(["/usr/bin/sandbox-exec", "-p", "(version 1)(allow default)", "/usr/bin/true"], wall=60)
    assert mac.last and mac.last.exit_code == 71 and "sandbox_apply" in output
    script = "from skep_seatbelt import probe; p = probe(); print(p.usable, p.checks[-1].id)"
    assert "False nested" in mac.run([sys.executable, "-c", script])


def test_children_that_left_their_group_and_parent_end_with_the_run(mac: Mac):
    word = f"61{os.getpid()}"
    mac.ask(f"""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "{word}"])
            os._exit(0)
        os.wait()
        answers["made"] = "ok"
    """)
    assert mac.last and mac.last.left == 0
    assert word not in outside("/bin/ps", "-axo", "args").stdout


def test_the_runs_processes_are_told_from_everybody_elses(mac: Mac):
    assert os.getpid() not in members(MARKER + "skep-none")
    assert members(MARKER + "skep-none") == []


def test_everything_ends_when_the_caller_is_killed(mac: Mac):
    word = f"62{os.getpid()}"
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(Path(__file__).parent.parent)!r}]
        from pathlib import Path
        from tests.mac import Mac
        home = Path({str(mac.home)!r})
        Mac(home, home / "repo", home / "outside", home / "secret").run(["/bin/sleep", "{word}"])
    """)
    caller = subprocess.Popen([sys.executable, "-c", script])
    listing = ("/bin/ps", "-axo", "args")
    assert _eventually(lambda: f"sleep {word}" in outside(*listing).stdout)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert _eventually(lambda: f"sleep {word}" not in outside(*listing).stdout)


def _eventually(holds: object) -> bool:
    assert callable(holds)
    for _ in range(100):
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_limits(mac: Mac):
    said = mac.ask(
        """
        answers["big"] = says(lambda: os.truncate("ask.py", 1 << 21))
        answers["small"] = says(lambda: os.truncate("ask.py", 1 << 10))
        """,
        limits=Limits(file_size=1 << 20),
    )
    assert said["small"] == "ok" and said["big"] != "ok"
    mac.run(["/bin/sleep", "60"], wall=1)
    assert mac.last and mac.last.limit == "wall"


def test_a_denial_is_found_in_the_unified_log(mac: Mac):
    mac.run(["/bin/sh", "-c", f"cat {mac.secret}/key"], hides=(PathRule(str(mac.secret), Access.HIDDEN, "dir"),))
    for _ in range(20):
        shown = outside(
            *("/usr/bin/log", "show", "--last", "2m", "--style", "ndjson", "--info", "--debug", "--predicate"),
            f'eventMessage CONTAINS "{mac.tag}"',
        )
        if found := collect(shown.stdout.splitlines(), tag=mac.tag):
            assert any(str(mac.secret) in denial.target for denial in found), found
            return
        time.sleep(1)
    pytest.fail("no denial in the log")
