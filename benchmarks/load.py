"""The origin and the clients: two C programs of ours, compiled when they are needed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Self, TypedDict

from .measure import Broken

HERE = Path(__file__).parent
SOURCES = ("origin.c", "load.c", "pattern.h")

Via = Literal["direct", "connect", "absolute"]
Mode = Literal["stream", "tunnels", "requests", "hold"]

GRACE = 30.0
"""Seconds beyond its own clock after which a client program is given up on."""


class Done(TypedDict):
    """What load.c reports."""

    seconds: float
    done: int
    bytes: int
    errors: int
    last_error: str
    reused: int
    p50_us: int
    p99_us: int


def compiled(cache: Path) -> Path:
    """The folder with `origin` and `load`, made from the sources as they are now. Raises Broken without a compiler."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SOURCES)).hexdigest()[:16]
    folder = cache / f"load-{digest}"
    compiler = shutil.which("cc")
    if not folder.exists():
        if compiler is None:
            raise Broken("a C compiler is needed as `cc`")
        fresh = cache / f"load-{digest}.{os.getpid()}"
        fresh.mkdir(parents=True)
        for name in ("origin", "load"):
            subprocess.run([compiler, "-O2", "-o", fresh / name, HERE / f"{name}.c"], check=True)
        fresh.rename(folder)
    return folder


def load_argv(
    program: Path | str, mode: Mode, *, peer: int, target: int, via: Via, clients: int, seconds: float
) -> list[str]:
    return [str(program), mode, str(peer), str(target), via, str(clients), str(seconds)]


def drive(program: Path, mode: Mode, *, peer: int, target: int, via: Via, clients: int, seconds: float) -> Done:
    """One run of the clients against what listens on 127.0.0.1:`peer`. Raises Broken when nothing worked."""
    argv = load_argv(program, mode, peer=peer, target=target, via=via, clients=clients, seconds=seconds)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + GRACE, stdin=subprocess.DEVNULL)
    return read_report(done.stdout)


def read_report(text: str) -> Done:
    """The first line of a report. Raises Broken for a run in which nothing worked."""
    if not text:
        raise Broken("the clients said nothing")
    found: Done = json.loads(text.splitlines()[0])
    if not found["bytes"] and not found["done"]:
        raise Broken(f"nothing came through: {found['last_error'] or 'too slow'}")
    return found


class Origin(AbstractContextManager["Origin"]):
    """The origin, listening on 127.0.0.1:`port`. It ends with this process, however that ends."""

    def __init__(self, programs: Path) -> None:
        self._process = subprocess.Popen(
            [programs / "origin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=10)


class Held(AbstractContextManager["Held"]):
    """Idle tunnels, open until the block ends; then each is used once, and `broken` says how many were of no use."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.count = json.loads(line)["done"] if line else 0
        self.broken = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            out, _errors = self._process.communicate(timeout=GRACE)
            self.broken = self.count - json.loads(out)["done"]
        except (subprocess.TimeoutExpired, ValueError):
            self._process.kill()
            self._process.wait()
            self.broken = self.count
