"""`skep-proxy serve` as a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from skep_policy import Decision, Verdict
from skep_proxy.daemon import Log
from skep_proxy.testing import Origin, read_all, wait_until

from .conftest import refused, reserved_port

Address = tuple[str, int]
Held = Callable[[AbstractContextManager[int]], int]


@pytest.fixture
def held(nothing_leaks: None) -> Iterator[Held]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


class Server:
    """A running command; `lines` is what it said on stderr so far."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def lines(self) -> str:
        return self._log.read_text()

    def addresses(self, count: int = 1) -> list[Address]:
        pattern = re.compile(r"listening on 127\.0\.0\.1:([0-9]+)\n")
        assert wait_until(lambda: len(pattern.findall(self.lines)) >= count), self.lines
        return [("127.0.0.1", int(port)) for port in pattern.findall(self.lines)]

    def said(self, text: str) -> bool:
        return wait_until(lambda: text in self.lines)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextlib.contextmanager
def serving(tmp_path: Path, *arguments: str, **options: object) -> Generator[Server]:
    log = tmp_path / "stderr"
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environ.update(options.pop("env", {}))  # type: ignore[arg-type]
    program: list[str] = options.pop("program", ["-m", "skep_proxy", "serve"])  # type: ignore[assignment]
    with log.open("wb") as stderr:
        argv = [sys.executable, *program, *arguments]
        process = subprocess.Popen(argv, stderr=stderr, stdout=subprocess.DEVNULL, env=environ, **options)  # type: ignore[call-overload]
    try:
        yield Server(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def get(address: Address, url: str) -> bytes:
    with socket.create_connection(address, 60) as sock:
        sock.sendall(f"GET {url} HTTP/1.0\r\n\r\n".encode())
        return read_all(sock)


def test_serves_what_flags_allow_and_ends_gracefully(tmp_path: Path, origin: Origin) -> None:
    log = tmp_path / "events.jsonl"
    allow = f"localhost:{origin.port}"
    with serving(tmp_path, "--allow", allow, "--listen", "127.0.0.1:0", "--json-log", str(log)) as server:
        (address,) = server.addresses()
        assert b"origin ok" in get(address, f"http://localhost:{origin.port}/")
        assert b" 403 " in get(address, "http://bad.test/")
        with socket.create_connection(address, 60) as tunnel:
            tunnel.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in tunnel.recv(100)
            server.process.send_signal(signal.SIGTERM)
            assert wait_until(lambda: refused(address))
            tunnel.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"origin ok" in read_all(tunnel), "an open tunnel has time to end"
        assert server.process.wait(60) == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["type"] for event in events] == ["decision", "closed", "decision", "decision", "closed"]
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_listener_where_nothing_is_allowed_is_told_of(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0") as server:
        (address,) = server.addresses()
        assert server.said("no rule allows anything there: --allow HOST")
        assert b" 403 " in get(address, "http://good.test/")
    with serving(tmp_path, "--allow", "good.test", "--listen", "127.0.0.1:0") as server:
        server.addresses()
        assert server.stop() == 0 and "no rule" not in server.lines


def test_log_that_cannot_be_written_denies(tmp_path: Path, origin: Origin) -> None:
    allow = f"localhost:{origin.port}"
    with serving(tmp_path, "--allow", allow, "--listen", "127.0.0.1:0", "--json-log", "/dev/full") as server:
        answer = get(server.addresses()[0], f"http://localhost:{origin.port}/")
        assert b" 403 " in answer and b"not-recorded" in answer
        assert origin.connections == 0


def test_reload_replaces_rules_and_keeps_tunnels(tmp_path: Path, origin: Origin) -> None:
    config = tmp_path / "proxy.toml"
    text = f'[[listener]]\ntcp = "127.0.0.1:0"\nallow = ["localhost:{origin.port}"]\n'
    config.write_text(text)
    with serving(tmp_path, "--config", str(config)) as server:
        (address,) = server.addresses()
        with socket.create_connection(address, 60) as tunnel:
            tunnel.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
            assert b" 200 " in tunnel.recv(100)
            config.write_text("nonsense = 1")
            server.process.send_signal(signal.SIGHUP)
            assert server.said("not reloaded") and str(config) in server.lines
            assert b"origin ok" in get(address, f"http://localhost:{origin.port}/"), "the old rules stay"
            unix = tmp_path / "more.sock"
            config.write_text('[[listener]]\ntcp = "127.0.0.1:0"\n' + f'[[listener]]\nunix = "{unix}"\n')
            server.process.send_signal(signal.SIGHUP)
            assert server.said("reloaded, 2 listeners")
            assert b" 403 " in get(address, f"http://localhost:{origin.port}/")
            assert unix.is_socket()
            tunnel.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"origin ok" in read_all(tunnel)
        config.write_text('[[listener]]\ntcp = "127.0.0.1:0"\n')
        server.process.send_signal(signal.SIGHUP)
        assert server.said("reloaded, 1 listeners") and not unix.exists()
        assert server.stop() == 0


def test_a_reload_that_cannot_open_one_listener_changes_nothing(tmp_path: Path, origin: Origin) -> None:
    """Not the rules of those that are there, not the other new ones, not the log."""
    config, fine, log = tmp_path / "proxy.toml", tmp_path / "fine.sock", tmp_path / "log"
    url = f"http://localhost:{origin.port}/"
    kept = '[[listener]]\ntcp = "127.0.0.1:0"\n'
    more = f'[[listener]]\nunix = "{fine}"\n'
    config.write_text(f'{kept}allow = ["localhost:{origin.port}"]\n')
    with serving(tmp_path, "--config", str(config), "--json-log", str(log)) as server:
        (address,) = server.addresses()
        log.rename(tmp_path / "old")
        config.write_text(f'{kept}{more}[[listener]]\nunix = "{tmp_path}/absent/one.sock"\n')
        server.process.send_signal(signal.SIGHUP)
        assert server.said("not reloaded: cannot listen on") and "absent/one.sock" in server.lines
        assert b"origin ok" in get(address, url) and not fine.exists() and not log.exists()
        config.write_text(f"{kept}{more}")
        server.process.send_signal(signal.SIGHUP)
        assert server.said("reloaded, 2 listeners")
        assert b" 403 " in get(address, url) and fine.is_socket() and log.exists()
        assert server.stop() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_reload_changes_the_mode_of_a_unix_socket_or_keeps_it_with_all_else(tmp_path: Path, workers: str) -> None:
    config, path = tmp_path / "proxy.toml", tmp_path / "s"
    config.write_text(f'[[listener]]\nunix = "{path}"\n')

    def mode() -> int:
        return path.stat().st_mode & 0o777

    with serving(tmp_path, "--config", str(config), "--workers", workers) as server:
        assert wait_until(lambda: server.lines.count("listening on") == int(workers))
        inode = path.stat().st_ino
        config.write_text(f'[[listener]]\nunix = "{path}"\nmode = "0660"\n')
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: server.lines.count("reloaded, 1 listeners") == int(workers)) and mode() == 0o660
        config.write_text(f'[[listener]]\nunix = "{path}"\n[[listener]]\nunix = "{tmp_path}/absent/s"\n')
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: server.lines.count("not reloaded") == int(workers)) and mode() == 0o660
        assert path.stat().st_ino == inode
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert server.stop() == 0
    assert not path.exists()


def test_what_one_worker_would_refuse_no_worker_takes(tmp_path: Path, origin: Origin, held: Held) -> None:
    """A broken file is told of once, by who starts the workers, and none of them reads it."""
    config, port = tmp_path / "proxy.toml", held(reserved_port())
    listener = f'[[listener]]\ntcp = "127.0.0.1:{port}"\n'
    config.write_text(f'{listener}allow = ["localhost:{origin.port}"]\n')
    with serving(tmp_path, "--config", str(config), "--workers", "2") as server:
        assert wait_until(lambda: server.lines.count("listening on") == 2)
        config.write_text(f"{listener}allow = 1\n")
        server.process.send_signal(signal.SIGHUP)
        assert server.said("not reloaded: ") and "proxy.toml" in server.lines
        assert b"origin ok" in get(("127.0.0.1", port), f"http://localhost:{origin.port}/")
        config.write_text(listener)
        server.process.send_signal(signal.SIGHUP)
        assert wait_until(lambda: server.lines.count("\nskep-proxy: reloaded") == 2)
        assert server.lines.count("not reloaded") == 1
        assert b" 403 " in get(("127.0.0.1", port), f"http://localhost:{origin.port}/")
        assert server.stop() == 0


def test_a_line_of_the_log_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    """The file may grow no further for a moment, as when a disk is full."""
    path = tmp_path / "log"
    log = Log(str(path), quiet=True)
    event = Decision(1.0, "good.test", 443, "connect", Verdict(True, "allowed"))
    log(event)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                log(event)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log(event)
    log(event)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["host"] for line in (lines[0], *lines[2:])] == ["good.test"] * 3
    assert 0 < len(lines[1]) < size - 1
    os.close(log._fd)  # pyright: ignore[reportPrivateUsage]


def test_a_scraper_that_takes_its_time_holds_up_the_next_for_a_moment_only(tmp_path: Path, held: Held) -> None:
    port = held(reserved_port())
    code = (
        "import sys, skep_proxy.daemon as daemon, skep_proxy.__main__ as command; daemon.METRICS_PATIENCE = 0.5; "
        "sys.exit(command.main(sys.argv[1:]))"
    )
    argv = ["serve", "--listen", "127.0.0.1:0", "--metrics", f"127.0.0.1:{port}"]
    with serving(tmp_path, *argv, program=["-c", code]) as server, contextlib.ExitStack() as stack:
        assert server.addresses()
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
        ended = threading.Event()

        def dribble() -> None:
            try:
                while not ended.wait(0.05):
                    slow.sendall(b"x")
            except OSError:
                pass

        thread = threading.Thread(target=dribble)
        thread.start()
        try:
            assert b"skep_proxy_connections" in scrape(port)
        finally:
            ended.set()
            thread.join()
        assert server.stop() == 0


def test_a_listener_that_a_reload_drops_serves_nobody_any_more(tmp_path: Path, origin: Origin) -> None:
    """Neither who came by it before and asks again, nor a container whose listener it was handed; tunnels stand."""
    config, unix = tmp_path / "proxy.toml", tmp_path / "a.sock"
    kept = '[[listener]]\ntcp = "127.0.0.1:0"\n'
    config.write_text(f'{kept}[[listener]]\nunix = "{unix}"\nallow = ["localhost:{origin.port}"]\n')
    request = f"GET http://localhost:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with serving(tmp_path, "--config", str(config)) as server, contextlib.ExitStack() as stack:
        assert server.said(f"listening on {unix}")
        plain, control = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        for sock in (plain, control):
            sock.settimeout(60)
            sock.connect(str(unix))
        with socket.create_server(("127.0.0.1", 0)) as mine:
            address = mine.getsockname()
            offer = b'SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "127.0.0.1", "port": 1}]}\n'
            socket.send_fds(control, [offer], [mine.fileno()])
            assert control.recv(100) == b"go\n"
        tunnel = stack.enter_context(socket.create_connection(address, 60))
        tunnel.sendall(f"CONNECT localhost:{origin.port} HTTP/1.1\r\n\r\n".encode())
        assert b" 200 " in tunnel.recv(100)
        plain.sendall(request)
        assert b" 200 " in plain.recv(1000)
        config.write_text(kept)
        server.process.send_signal(signal.SIGHUP)
        assert server.said("reloaded, 1 listeners")
        plain.sendall(request)
        assert b" 403 " in plain.recv(1000)
        with pytest.raises(ConnectionError):
            get(address, f"http://localhost:{origin.port}/")
        tunnel.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"origin ok" in read_all(tunnel)


def test_workers_share_a_listener_and_add_up_their_counters(tmp_path: Path, origin: Origin, held: Held) -> None:
    port, metrics = held(reserved_port()), held(reserved_port())
    arguments = (
        "--listen",
        f":{port}",
        "--metrics",
        f":{metrics}",
        "--workers",
        "3",
        "--allow",
        f"localhost:{origin.port}",
    )
    with serving(tmp_path, *arguments) as server:
        assert wait_until(lambda: not refused(("127.0.0.1", port)))
        for _ in range(10):
            assert b"origin ok" in get(("127.0.0.1", port), f"http://localhost:{origin.port}/")
        with socket.create_connection(("127.0.0.1", metrics), 60) as sock:
            sock.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
            assert b" 404 " in read_all(sock)
        assert wait_until(lambda: b"\nskep_proxy_allowed_total 10\n" in scrape(metrics))
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert len(children) == 3
        os.kill(int(children[0]), signal.SIGKILL)
        assert wait_until(lambda: working(server.process.pid) >= 3 and not Path(f"/proc/{children[0]}").exists())
        assert server.stop() == 0
        assert refused(("127.0.0.1", port))


def scrape(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return read_all(sock)


def working(parent: int) -> int:
    return len(Path(f"/proc/{parent}/task/{parent}/children").read_text().split())


def test_workers_that_cannot_serve_say_why_and_can_be_stopped(tmp_path: Path) -> None:
    log = str(tmp_path / "absent/log")
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--workers", "2", "--json-log", log) as server:
        assert wait_until(lambda: server.lines.count("a worker cannot serve: ") >= 4), "they are started again"
        assert "No such file" in server.lines
        assert server.stop() in (0, 1)


def test_workers_end_with_their_parent_however_it_dies(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "127.0.0.1:0", "--workers", "2") as server:
        parent = server.process.pid
        assert wait_until(lambda: working(parent) == 2)
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        server.process.kill()
        assert wait_until(lambda: not any(running(int(child)) for child in children))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_systemd_is_told_and_its_socket_is_served(tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(60)
    # A shell that sets LISTEN_PID to its own pid and becomes the server, as systemd does.
    with manager, socket.create_server(("127.0.0.1", 0)) as passed:
        script = 'exec 3<&"$1"; export LISTEN_PID=$$; shift; exec "$@"'
        command = [sys.executable, "-m", "skep_proxy", "serve", "--allow", "example.com", "--quiet"]
        environ = {**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "web", "NOTIFY_SOCKET": str(tmp_path / "notify")}
        os.set_inheritable(passed.fileno(), True)
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", str(passed.fileno()), *command], pass_fds=[passed.fileno()], env=environ
        )
        try:
            assert b"READY=1" in manager.recv(1000)
            assert b" 403 " in get(passed.getsockname(), "http://bad.test/")
            process.send_signal(signal.SIGHUP)
            assert b"RELOADING=1\nMONOTONIC_USEC=" in manager.recv(1000)
            assert b"READY=1" in manager.recv(1000)
            process.send_signal(signal.SIGTERM)
            assert b"STOPPING=1" in manager.recv(1000)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--allow", "http://ex.com"], 2, "ex.com"),
        (["--listen", "example.com:1"], 2, "not on a name"),
        (["--listen", "nonsense"], 2, "127.0.0.1:3128"),
        (["--unix", "/nowhere/at/all", "--mode", "9"], 2, "octal"),
        (["--unix", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (["--config", "/nowhere"], 2, "/nowhere"),
        (["--upstream", "socks4://x"], 2, "socks5h://HOST:PORT"),
        (["--workers", "0"], 2, "at least 1"),
        (["--workers", "2", "--max-bytes-out", "1MiB"], 2, "per process"),
        (["--max-bytes-out", "many"], 2, "size"),
        (["--drain", "soon"], 2, "duration"),
        (["--listen", "192.0.2.1:1"], 1, "192.0.2.1:1"),
        (["--nonsense"], 2, "nonsense"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, arguments: list[str], code: int, text: str) -> None:
    with serving(tmp_path, *arguments) as server:
        assert server.process.wait(60) == code
        assert text in server.lines.splitlines()[-1] and "Traceback" not in server.lines


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[[listener]]\ntpc = 1", "tpc"),
        ("[[listener]]\n", "listener[0]"),
        ('[[listener]]\ntcp = ":1"\nunix = "/x"', "listener[0]"),
        ('[[listener]]\ntcp = "x:1"', "listener[0].tcp"),
        ('[[listener]]\ntcp = ":1"\nallow = ["http://x"]', "listener[0].allow"),
        ('[[listener]]\ntcp = ":1"\n[[listener]]\ntcp = "127.0.0.1:1"', "listener[1]"),
        ("[limits]\nhead = true", "head"),
        ("[limits]\nheads = 1", "heads"),
        ("[[", "toml"),
    ],
)
def test_errors_in_a_file_name_the_file_and_the_key(tmp_path: Path, text: str, where: str) -> None:
    from skep_policy import PolicyError
    from skep_proxy.config import parse_file

    with pytest.raises(PolicyError) as caught:
        parse_file(text, source="proxy.toml")
    assert "proxy.toml" in str(caught.value) and where in str(caught.value)
