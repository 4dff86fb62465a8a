"""The stage of `skep demo`: a throwaway home with a repository in it, and services of the host that count who reaches
them.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import cast

from skep_cli.errors import CannotRun, SkepError
from skep_cli.workspace.removal import remove

DOMAIN = "not-listed.example.com"
TIMEOUT = 120.0
MAX_ADDRESS = 100
"""Bytes of a Unix socket's path; the system takes 107."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "NO_COLOR", "USER", "LOGNAME", "VIRTUAL_ENV")
TEST = """import unittest

from calc import add


class Add(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""


class Counter:
    """A listening socket of the host that counts who gets through, and answers as HTTP does."""

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        self.reached = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        server.listen()
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.reached += 1
            with connection:
                connection.settimeout(3)
                try:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nwelcome\n")
                except OSError:
                    pass

    def close(self) -> None:
        try:
            self.server.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.server.close()
        self._thread.join(5)


def tcp() -> Counter:
    server = socket.socket(socket.AF_INET)
    server.bind(("127.0.0.1", 0))
    return Counter(server)


def unix(path: Path) -> Counter:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    return Counter(server)


class Stage:
    """The throwaway folder: a home with a key in it, a repository with a failing test, and what the worker must not
    reach.
    """

    def __init__(self, base: Path, program: str, environ: Mapping[str, str]) -> None:
        self.base = base
        self.home, self.repo, self.outside = base / "home", base / "home/repo", base / "outside"
        self.marker, self.secret, self.ran = (
            self.outside / "marker",
            self.home / ".ssh/id_demo",
            self.outside / "hook-ran",
        )
        self.socket_path = self.outside / "host.sock"
        self._short: Path | None = None
        if len(os.fsencode(self.socket_path)) > MAX_ADDRESS:
            self._short = Path(tempfile.mkdtemp(prefix="skep-demo-"))
            self.socket_path = self._short / "host.sock"
        self.token = secrets.token_hex(16)
        self.tag = f"skep-demo-{secrets.token_hex(8)}"
        self.python = os.path.realpath(sys.executable)
        self._program = program
        self.env = {key: environ[key] for key in PASSED_ON if key in environ} | {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(base / "state"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def __enter__(self) -> Stage:
        for folder in (self.secret.parent, self.repo / ".demo", self.outside):
            folder.mkdir(parents=True)
        self.secret.write_text(f"KEY {self.token}\n")
        self.marker.write_text("untouched\n")
        self.open, self.closed, self.socket = tcp(), tcp(), unix(self.socket_path)
        targets = {
            "marker": str(self.marker),
            "secret": str(self.secret),
            "ran": str(self.ran),
            "domain": DOMAIN,
            "tag": self.tag,
            "socket": str(self.socket_path),
            "open_port": str(port(self.open)),
            "closed_port": str(port(self.closed)),
        }
        (self.repo / ".demo/targets.json").write_text(json.dumps(targets))
        (self.repo / ".demo/agent.py").write_text((files("skep_cli") / "demo/worker.py").read_text("utf-8"))
        (self.repo / ".gitignore").write_text("__pycache__/\n.demo/\n")
        (self.repo / "calc.py").write_text("def add(a, b):\n    return a - b\n")
        (self.repo / "test_calc.py").write_text(TEST)
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "a calculator")
        return self

    def __exit__(self, *exc: object) -> None:
        for counter in (self.open, self.closed, self.socket):
            counter.close()
        if self._short:
            remove(self._short)

    def git(self, *args: str) -> str:
        who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
        return self._run([self._program, *who, *args]).stdout

    def skep(self, *args: str) -> subprocess.CompletedProcess[str]:
        """skep itself, as a user would call it. Raises CannotRun when it says that it could not run."""
        # sys.executable and not its real path: a virtual environment is found by the name it was called by
        done = self._run([sys.executable, "-m", "skep_cli", *args], check=False)
        if done.returncode in (2, 125):
            lines = done.stderr.strip().splitlines() or ["no reason was given"]
            raise CannotRun(lines[-1].removeprefix("skep: "))
        return done

    def _run(self, words: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            cwd=self.repo,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
        if check and done.returncode:
            raise SkepError(f"the demo could not be set up: {words[0]} {words[-1]}: {done.stderr.strip()[:300]}")
        return done

    def test(self) -> list[str]:
        return [self.python, "-m", "unittest", "-q"]


def port(counter: Counter) -> int:
    return cast("tuple[str, int]", counter.server.getsockname())[1]
