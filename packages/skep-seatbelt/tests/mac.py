"""A real sandbox on a real Mac: a home of its own, a worker in it, and what the worker said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from skep_policy.boundary import PathRule
from skep_policy.launch import Launch
from skep_seatbelt import Ended, Proxy, compile, first_program, listening, new_tag, settle, spawn

from .boundaries import boundary, root

PRELUDE = """
import ctypes, errno, json, os, socket, subprocess, sys
def says(act):
    try:
        value = act()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return value if isinstance(value, (str, int, list)) and not isinstance(value, bool) else "ok"
def write(path):
    with open(path, "a") as file:
        file.write("x")
def read(path):
    with open(path) as file:
        return "ok" if file.read() is not None else ""
def connect(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(3)
        sock.connect(address)
def run(*argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    return [done.returncode, done.stdout.decode(errors="replace")[-2000:]]
answers = {}
"""


class Mac(msgspec.Struct):
    """`repo` is the worker's root and folder, `outside` and `secret` are the user's."""

    home: Path
    repo: Path
    outside: Path
    secret: Path
    last: Ended | None = None
    tag: str = ""

    def compile(
        self,
        argv: list[str],
        *,
        roots: Iterable[PathRule] = (),
        proxy: Proxy | None = None,
        services: Iterable[str] = (),
        terminal: str | None = None,
        listen: bool = False,
        **given: Any,
    ) -> Launch:
        scratch = self.home / "scratch"
        scratch.mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(Path.home()), "TMPDIR": str(scratch), "LANG": "en_US.UTF-8"}
        values: dict[str, Any] = {"cwd": str(self.repo), "home": str(self.home), "uid": os.getuid(), "env": env}
        values["hides"] = (PathRule(str(self.secret), 0, "dir"),)  # pyright: ignore[reportArgumentType]
        one = boundary(roots=[root(str(self.repo)), root(str(scratch)), *roots], **{**values, **given})
        self.tag = new_tag()
        python, shim, reads = first_program()
        return compile(
            settle(one),
            argv,
            tag=self.tag,
            python=python,
            shim=shim,
            reads=reads,
            proxy=proxy,
            services=services,
            terminal=terminal,
            listen=listen,
            host_sockets=listening(),
        )

    def ask(self, script: str, **given: Any) -> dict[str, Any]:
        """`answers` of a Python script that ran inside."""
        result = self.repo / "answers.json"
        result.unlink(missing_ok=True)
        text = PRELUDE + textwrap.dedent(script) + f"\nwith open({str(result)!r}, 'w') as f: json.dump(answers, f)\n"
        program = self.repo / "ask.py"
        program.write_text(text)
        self.run([sys.executable, str(program)], **given)
        assert result.exists(), (self.last, (self.home / "output").read_text())
        return json.loads(result.read_text())

    def run(self, argv: list[str], *, wall: float = 120, **given: Any) -> str:
        """What a command wrote that ran inside; its end is `last`."""
        launch = self.compile(argv, **given)
        output = self.home / "output"
        with output.open("wb") as out, open(os.devnull, "rb") as null:
            sandbox = spawn(
                launch, tag=self.tag, stdin=null.fileno(), stdout=out.fileno(), stderr=out.fileno(), wall=wall
            )
            self.last = sandbox.wait()
        return output.read_text(errors="replace")


def outside(*argv: str) -> subprocess.CompletedProcess[str]:
    """The same command without a sandbox: the twin of a denial."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.fixture
def mac() -> Iterator[Mac]:
    home = Path(os.path.realpath(tempfile.mkdtemp(prefix=".skep-mac-", dir=Path.home())))
    try:
        for name in ("repo", "outside", "secret"):
            (home / name).mkdir()
        (home / "outside" / "marker").write_text("untouched")
        (home / "secret" / "key").write_text("hush")
        yield Mac(home, home / "repo", home / "outside", home / "secret")
    finally:
        shutil.rmtree(home, ignore_errors=True)


only_on_a_mac = [
    pytest.mark.macos,
    pytest.mark.skipif(sys.platform != "darwin", reason="needs a Mac; .github/workflows/macos.yml runs it on several"),
]
