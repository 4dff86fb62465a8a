"""The proxies: how each is started, with what its manual says for many connections and no log."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .load import Via
from .measure import Broken, cpu_seconds, descendants, end, first_line, pss
from .table import version

STARTING = 20.0
"""Seconds a server has until it accepts."""

MAX_CLIENTS = 6000
"""What is asked for where a server wants to be told; more than the idle tunnels, and within ordinary limits."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Site:
    """What a server is started with: its port, the origin's, a folder of its own, its program."""

    port: int
    target: int
    folder: Path
    program: str


@dataclass(frozen=True)
class Candidate:
    """`program` is what must be installed; `version` makes it tell its own; `tunnel` and `plain` say how clients
    speak to it; `note` what must be known to compare it.
    """

    name: str
    program: str
    argv: Callable[[Site], Sequence[str]]
    version: Sequence[str] = ()
    tunnel: Via = "connect"
    plain: Via = "absolute"
    note: str = ""
    package: str = ""
    """On PyPI, for those that `install` brings."""

    def find(self, cache: Path) -> str | None:
        """The program: in the environment `install` made, else on PATH and where servers are."""
        path = os.pathsep.join(
            [str(environment(cache, self.package) / "bin"), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]
        )
        return shutil.which(self.program, path=path)

    def says(self, program: str) -> str:
        """Of which version it is; ours is the one of this tree."""
        return version([program, *self.version]) if self.version else ""


def environment(cache: Path, package: str) -> Path:
    """Where `install` puts a package of PyPI, on its own."""
    return cache / f"pypi-{package}"


class Server(AbstractContextManager["Server"]):
    """A candidate that runs and accepts; gone when the block ends."""

    def __init__(self, candidate: Candidate, program: str, target: int, folder: Path) -> None:
        """Raises Broken when it does not accept in time."""
        folder.mkdir(parents=True)
        self.candidate = candidate
        self.port = free_port()
        self.log = folder / "log"
        argv = candidate.argv(Site(self.port, target, folder, program))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, "HOME": str(folder)},
                preexec_fn=end_with_parent,
            )
        try:
            self._wait()
        except BaseException:
            end(self._process.pid)
            raise

    def _wait(self) -> None:
        limit = time.monotonic() + STARTING
        while time.monotonic() < limit:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                raise Broken(f"it ended: {first_line(str(self.log))}")
            time.sleep(0.05)
        raise Broken("it does not accept")

    def cpu(self) -> float:
        return cpu_seconds(self._process.pid)

    def memory(self) -> int:
        return pss(descendants(self._process.pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process.pid)
        self._process.returncode = 0


def end_with_parent() -> None:
    """In the child: killed when we are."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _skep(workers: int) -> Callable[[Site], Sequence[str]]:
    def argv(site: Site) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "skep_proxy", "serve", "--config", _limits(site)),
            *("--workers", str(workers), "--quiet", "--upstream", "none"),
        ]

    return argv


def _limits(site: Site) -> str:
    text = f"""
[[listener]]
tcp = "127.0.0.1:{site.port}"
allow = ["127.0.0.1:{site.target}"]

[limits]
connections = {MAX_CLIENTS}
connections-each = {MAX_CLIENTS}
"""
    return _written(site, "skep-proxy.toml", text)


def _tinyproxy(site: Site) -> Sequence[str]:
    text = f"""
Port {site.port}
Listen 127.0.0.1
Timeout 600
MaxClients {MAX_CLIENTS}
LogLevel Critical
LogFile "{site.folder}/tinyproxy.log"
DisableViaHeader Yes
"""
    return [site.program, "-d", "-c", _written(site, "tinyproxy.conf", text)]


def _squid(site: Site) -> Sequence[str]:
    text = f"""
http_port 127.0.0.1:{site.port}
http_access allow all
cache deny all
access_log none
cache_log /dev/null
pid_filename none
shutdown_lifetime 0 seconds
max_filedescriptors {2 * MAX_CLIENTS}
coredump_dir {site.folder}
"""
    return [site.program, "-N", "-f", _written(site, "squid.conf", text)]


def _haproxy(mode: str) -> Callable[[Site], Sequence[str]]:
    def argv(site: Site) -> Sequence[str]:
        text = f"""
global
    maxconn {MAX_CLIENTS}
    nbthread 1
defaults
    mode {mode}
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    option splice-auto
frontend in
    bind 127.0.0.1:{site.port}
    default_backend out
backend out
    server origin 127.0.0.1:{site.target}
"""
        return [site.program, "-db", "-f", _written(site, "haproxy.cfg", text)]

    return argv


def _mitmproxy(site: Site) -> Sequence[str]:
    return [
        *(site.program, "--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(site.port)),
        *("--set", f"confdir={site.folder}", "--set", "stream_large_bodies=1m", "--ignore-hosts", ".*"),
    ]


def _proxy_py(site: Site) -> Sequence[str]:
    return [
        *(site.program, "--hostname", "127.0.0.1", "--port", str(site.port), "--num-workers", "1"),
        *("--num-acceptors", "1", "--log-level", "ERROR", "--timeout", "600", "--backlog", "4096"),
        *("--open-file-limit", str(2 * MAX_CLIENTS), "--data-dir", str(site.folder)),
    ]


def _written(site: Site, name: str, text: str) -> str:
    path = site.folder / name
    path.write_text(text)
    return str(path)


def proxies(workers: int) -> list[Candidate]:
    """All of them, ours first. `workers` is what the second skep-proxy runs with."""
    relay = "knows no CONNECT: a TCP relay with splice, to one fixed server"
    untouched = "told not to look inside tunnels"
    http = "as an HTTP server before one fixed server"
    return [
        Candidate("skep-proxy", sys.executable, _skep(1)),
        Candidate(f"skep-proxy, {workers} workers", sys.executable, _skep(workers)),
        Candidate("tinyproxy", "tinyproxy", _tinyproxy, version=("-v",)),
        Candidate("squid", "squid", _squid, version=("-v",)),
        Candidate("haproxy (TCP)", "haproxy", _haproxy("tcp"), ("-v",), "direct", "direct", note=relay),
        Candidate("haproxy (HTTP)", "haproxy", _haproxy("http"), ("-v",), "direct", "direct", note=http),
        Candidate("proxy.py", "proxy", _proxy_py, ("--version",), package="proxy.py"),
        Candidate("mitmproxy", "mitmdump", _mitmproxy, ("--version",), package="mitmproxy", note=untouched),
    ]
