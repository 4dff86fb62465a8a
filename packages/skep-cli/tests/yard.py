"""A package registry on loopback for npm and pip, and a home and a project to install from it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PACKAGE = "skep-demo-package"
MODULE = PACKAGE.replace("-", "_")


@cache
def npm_archive() -> bytes:
    """A package that exports the number 42. Made once, since gzip writes the time of day into it."""
    files = {
        "package.json": json.dumps({"name": PACKAGE, "version": "1.0.0", "main": "index.js"}),
        "index.js": "module.exports = 42\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def wheel() -> bytes:
    """The same for Python."""
    info = f"{MODULE}-1.0.0.dist-info"
    files = {
        f"{MODULE}.py": "answer = 42\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


class Registry:
    """An npm registry at /npm/ and a simple index at /simple/, with one package, and `files`; keeps who asked for what
    with which credentials.
    """

    def __init__(self) -> None:
        self.files: Mapping[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            wbufsize = -1  # head and body in one piece: the second would wait for word of the first

            def do_GET(self) -> None:
                registry.asked.append((self.path, self.headers.get("Authorization")))
                found = registry.answer(self.path, f"http://{self.headers['Host']}")
                kind, body = found or ("text/plain", b"no such thing\n")
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, path: str, base: str) -> tuple[str, bytes] | None:
        wheel_name = f"{MODULE}-1.0.0-py3-none-any.whl"
        match path:
            case "/npm/skep-demo-package":
                archive = npm_archive()
                integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
                dist = {"tarball": f"{base}/npm/{PACKAGE}/-/{PACKAGE}-1.0.0.tgz", "integrity": integrity}
                version = {"name": PACKAGE, "version": "1.0.0", "main": "index.js", "dist": dist}
                document = {"name": PACKAGE, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
                return "application/json", json.dumps(document).encode()
            case "/npm/skep-demo-package/-/skep-demo-package-1.0.0.tgz":
                return "application/octet-stream", npm_archive()
            case "/simple/skep-demo-package/":
                return "text/html", f'<a href="../../files/{wheel_name}">{wheel_name}</a>'.encode()
            case _ if path == f"/files/{wheel_name}":
                return "application/octet-stream", wheel()
            case _ if path in self.files:
                return "application/octet-stream", self.files[path]
            case _:
                return None

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Yard:
    """A folder with a home and a project in it, below the real home: /tmp is the worker's own."""

    def __init__(self, base: Path) -> None:
        self.home = base / "home"
        self.project = self.home / "project"
        self.state = base / "state"
        for folder in (self.home, self.project, self.state):
            folder.mkdir()
        self.report: dict[str, Any] = {}

    def write(self, files: Mapping[str, str], *, below: Path | None = None) -> None:
        for name, text in files.items():
            path = (below or self.project) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def exec(
        self, *command: str, flags: tuple[str, ...] = (), own_home: bool = True, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`skep exec` in the project; `report` is its report afterwards. Without `own_home` the tools are configured as
        those of the user who runs the tests.
        """
        path = self.state / "report.json"
        path.unlink(missing_ok=True)
        words = [sys.executable, "-m", "skep_cli", "exec", "--report", str(path), *flags, "--", *command]
        done = self.outside(*words, own_home=own_home, cwd=cwd)
        self.report = json.loads(path.read_text()) if path.exists() and path.stat().st_size else {}
        return done

    def outside(
        self, *command: str, own_home: bool = True, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The same environment without a boundary."""
        env = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
        if own_home:
            prefixes = ("PIP_", "UV_", "npm_config_", "NPM_CONFIG_")
            env = {key: value for key, value in env.items() if not key.startswith(prefixes)}
            env["HOME"] = str(self.home)
            env = {key: value for key, value in env.items() if not key.startswith("XDG_")}
        env["XDG_STATE_HOME"] = str(self.state)
        env["PATH"] = search_path()
        return subprocess.run(
            command,
            cwd=cwd or self.project,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
            check=False,
        )

    def destinations(self, kind: str) -> set[tuple[str, int]]:
        """What the last report allowed or denied."""
        return {(entry["host"], entry["port"]) for entry in self.report["egress"][kind]}


def search_path() -> str:
    """The tests' PATH with the folder of the uv that runs them, which is not always on it, and without that of their
    Python.
    """
    own = os.path.dirname(sys.executable)
    folders = [folder for folder in os.environ["PATH"].split(":") if folder != own]
    if uv := os.environ.get("UV"):
        folders.append(os.path.dirname(uv))
    return ":".join(folders)


def has(tool: str) -> bool:
    return shutil.which(tool, path=search_path()) is not None


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if not has(tool)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def ok(done: subprocess.CompletedProcess[str]) -> str:
    """What it wrote on stdout."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
