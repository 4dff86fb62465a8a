"""The host's tools and their configuration, asked from a folder of our own.

The code we do not trust lies in the project and in whatever else the worker may write. Nothing there is run, nothing
there is read: a planted npmrc would widen the allowlist, a planted `pip` would run on the host.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from skep_policy.boundary import below
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts

PATIENCE = 30.0
"""Seconds a tool has to say how it is configured; npm on a cold disk needs several."""

MAX_CONFIG = 1 << 20
"""Bytes read of a configuration file."""

MAX_LINE = 1 << 12
"""Bytes of a request's first line."""

_UNASKED = frozenset(
    (
        *("PWD", "OLDPWD", "BASH_ENV", "ENV", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NODE_OPTIONS", "NODE_PATH"),
        *("GOFLAGS", "RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_RUSTC", "CARGO_TARGET_DIR"),
        *("CARGO_BUILD_RUSTC_WRAPPER", "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER"),
    )
)
"""Variables that would make the tools run or read what lies somewhere else, by a path that need not be absolute."""


class Host:
    """What one resolution of toolchains sees of the machine. `untrusted` are the project and all other folders the
    worker may write.
    """

    def __init__(self, facts: Facts, *, untrusted: Sequence[str] = ()) -> None:
        self.facts = facts
        self.environ = facts.environ
        self.untrusted = sorted({os.path.realpath(folder) for folder in untrusted})
        self.path = [folder for folder in self._search_path() if not self.inside(folder)]
        self.seen: set[str] = set()
        """Every path an answer depends on, absent ones too."""
        self.incomplete = False
        """Something could not be had that may be there the next time."""

    def _search_path(self) -> list[str]:
        return [folder for folder in self.environ.get("PATH", os.defpath).split(":") if folder.startswith("/")]

    def inside(self, path: str) -> str | None:
        """The untrusted folder a path leads into, by its own name or by a link."""
        for seen in (os.path.normpath(path), os.path.realpath(path)):
            for folder in self.untrusted:
                if below(seen, folder):
                    return folder
        return None

    def _leads_inside(self, value: str) -> bool:
        """Does the value of a variable name anything in an untrusted folder?"""
        named = any(re.search(rf"(?<![\w./~-]){re.escape(folder)}(?![\w.-])", value) for folder in self.untrusted)
        return named or any(part.startswith("/") and self.inside(part) for part in value.split(":"))

    def vouch(self, *paths: str) -> None:
        """Nothing, when the worker cannot write any of these. Raises PolicyError."""
        self.seen.update(paths)
        for path in paths:
            self._refuse_inside(path, "configures the tool")

    def _refuse_inside(self, path: str, what: str) -> None:
        if folder := self.inside(path):
            raise PolicyError(f"{path} {what} and lies in {folder}, where the worker writes; run in a folder below")

    def home(self, path: str) -> str:
        return os.path.join(self.facts.home, path)

    def find(self, tool: str) -> str | None:
        """The program on PATH, what lies in untrusted folders skipped."""
        for folder in self.path:
            path = os.path.join(folder, tool)
            self.seen.add(path)
            if os.path.isfile(path) and os.access(path, os.X_OK) and not self.inside(path):
                return path
        return None

    def ask(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
        may_fail: bool = False,
    ) -> str:
        """What a program says, on stdout or, where it `may_fail`, on both. Raises PolicyError for no answer."""
        import subprocess  # what is remembered needs none of this

        environ = {
            name: value
            for name, value in self.environ.items()
            if name not in _UNASKED and not self._leads_inside(value)
        }
        environ |= {"PATH": ":".join(self.path), "LC_ALL": "C", "NO_COLOR": "1", **(env or {})}
        name = os.path.basename(argv[0])
        try:
            done = subprocess.run(
                argv,
                env=environ,
                cwd=folder or self.neutral(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if may_fail else subprocess.PIPE,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PolicyError(f"{name} does not say how it is configured: no answer in {PATIENCE:g} seconds") from None
        except OSError as error:
            raise PolicyError(f"{argv[0]} cannot be asked how it is configured: {error.strerror}") from None
        if done.returncode and not may_fail:
            lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
            raise PolicyError(
                f"{name} does not say how it is configured: {lines[-1].strip() if lines else f'exit {done.returncode}'}"
            )
        return done.stdout.decode(errors="replace")

    def read(self, path: str) -> str | None:
        """The text of a configuration file; None when there is none. Raises PolicyError."""
        self.vouch(path)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PolicyError(f"cannot be read: {error.strerror}", source=path) from None
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return file.read(MAX_CONFIG).decode(errors="replace")

    def neutral(self) -> str:
        """A folder without configuration of anyone: ours, below the home folder."""
        folder = os.path.join(self.facts.state_dir, "toolchains")
        self._refuse_inside(folder, "is skep's own")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise PolicyError(f"{folder} cannot be made: {error.strerror}") from None
        return folder

    def publish(self, name: str, text: str) -> str:
        """The path of a file with this text that the worker can read and not write."""
        folder = os.path.join(self.facts.xdg("CACHE"), "skep", "toolchains")
        self._refuse_inside(folder, "is skep's own")
        path = os.path.join(folder, f"{hashlib.sha256(text.encode()).hexdigest()[:16]}-{name}")
        try:
            if self.read(path) != text:
                os.makedirs(folder, mode=0o700, exist_ok=True)
                draft = f"{path}.{os.getpid()}"
                with open(draft, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(draft, path)
        except OSError as error:
            raise PolicyError(f"{path} cannot be written: {error.strerror}") from None
        return path

    @contextmanager
    def workbench(self, files: Mapping[str, str]) -> Generator[str]:
        """A folder with these files, gone afterwards."""
        import shutil
        import tempfile

        folder = tempfile.mkdtemp(dir=self.neutral())
        try:
            for name, text in files.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def turning_away(self) -> Generator[tuple[int, list[str]]]:
        """The port of a proxy on loopback that lets nothing through, and the first line of each request it had."""
        import socketserver
        import threading

        asked: list[str] = []

        class TurnedAway(socketserver.StreamRequestHandler):
            timeout = PATIENCE

            def handle(self) -> None:
                asked.append(self.rfile.readline(MAX_LINE).decode("latin-1").strip())
                self.wfile.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), TurnedAway) as server:
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            try:
                yield server.server_address[1], asked
            finally:
                server.shutdown()
                thread.join()

    def fetch(self, url: str) -> bytes | None:
        """A small public document, as the tool itself would fetch it; None when there is none to be had."""
        from http.client import HTTPException
        from urllib.request import urlopen

        try:
            with urlopen(url, timeout=10) as response:
                return response.read(MAX_CONFIG)
        except (OSError, ValueError, HTTPException):
            self.incomplete = True
            return None

    def stamp(self, path: str) -> str:
        """What changes when what stands at a path does; the same for whatever is absent."""
        try:
            info = os.stat(path)
        except OSError:
            return ""
        return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}"

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()
