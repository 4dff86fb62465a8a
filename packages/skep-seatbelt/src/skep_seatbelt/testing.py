"""Stands in for /usr/bin/sandbox-exec where there is none: checks how it was called, judges by the profile it was
given, and becomes the command.

It cannot hold the worker; it holds the first program inside, in the same process, by an audit hook that asks the
evaluator. So the attestation is answered by the printed profile.
"""

from __future__ import annotations

import os
import runpy
import stat
import sys
from pathlib import Path
from typing import Any

from .evaluate import Profile, Query
from .places import canonical

NESTED = "sandbox-exec: sandbox_apply: Operation not permitted"


def install(folder: Path, mode: str = "hold") -> str:
    """An executable that calls `main`. `mode`: hold, idle (does not hold), nested, unreadable, hang."""
    path = folder / f"sandbox-exec-{mode}"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom {__name__} import main\nmain({mode!r}, sys.argv)\n")
    path.chmod(0o755)
    return str(path)


def main(mode: str, argv: list[str]) -> None:
    if mode == "nested":
        sys.exit(_say(71, NESTED))
    if mode == "unreadable":
        sys.exit(_say(65, "sandbox-exec: unbound variable: file-clone"))
    if mode == "hang":
        while True:
            os.read(os.pipe()[0], 1)
    flag, path, command = argv[1], argv[2], argv[3:]
    info = os.stat(path)
    checks = {
        "-f": flag == "-f",
        "the profile is ours alone": stat.S_IMODE(info.st_mode) == 0o600 and info.st_uid == os.getuid(),
        "so is its folder": stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700,
        "the first program": os.path.isabs(command[0]) and command[1:3] == ["-I", "-S"] and len(command) == 5,
        "no environment of the caller": set(os.environ) <= {"PATH", "LC_CTYPE", "__CF_USER_TEXT_ENCODING"},
        "a session of its own": os.getsid(0) == os.getpid(),
    }
    if wrong := [name for name, held in checks.items() if not held]:
        sys.exit(_say(64, f"called wrongly: {wrong} {argv}"))
    profile = Profile(Path(path).read_text())
    if mode == "hold":
        sys.addaudithook(lambda event, args: _judge(profile, event, args))
    sys.argv = command[3:]
    runpy.run_path(command[3], run_name="__main__")


def _say(code: int, text: str) -> int:
    os.write(2, text.encode() + b"\n")
    return code


def _judge(profile: Profile, event: str, args: tuple[Any, ...]) -> None:
    queries: list[Query] = []
    match event, args:
        case "open", (str() as path, _, int() as flags):
            path = canonical(os.path.realpath(path))
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            made = writes and not os.path.exists(path)
            queries.append(
                Query("file-write-create" if made else "file-write-data" if writes else "file-read-data", path)
            )
        case "os.kill", (int() as pid, _):
            queries.append(Query("signal", names={"target": "self"} if pid == os.getpid() else {}))
        case "socket.connect" | "socket.sendto", (_, (str() as host, int() as port)):
            host = "localhost" if host in ("127.0.0.1", "::1") else host
            queries.append(Query("network-outbound", remote=(host, port)))
        case _:
            return
    for query in queries:
        if not profile.decide(query).allow:
            raise PermissionError(1, "Operation not permitted")
