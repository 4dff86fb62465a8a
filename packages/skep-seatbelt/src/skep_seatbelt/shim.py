"""The first program inside the profile: attests the boundary, sets the limits, becomes the worker.

Run as `python -I -S shim.py FD`. Stdlib only. FD is a stream socket to the spawner; the conversation is

    spawner -> shim   `LENGTH RUNNING STDERR\n`: bytes that follow, processes of this user, the worker's descriptor 2;
                      then LENGTH bytes of JSON (`compile.Inside`)
    shim -> spawner   `attest {...}\n`, then end-of-file when the worker has been started,
                      or `refused REASON\n`, or `exec ERRNO\n`.

It answers before the worker runs, which tells a worker that exits with 71 from a sandbox-exec that does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

DOCUMENTATION_ADDRESS = ("192.0.2.1", 9)
"""RFC 5737: nobody is there."""

APPLICATIONS = "com.apple.coreservices.launchservicesd"
"""Opens applications outside the sandbox: the one service that turns every other denial into advice."""

GLOBAL_NAME_QUIETLY = 2 | 0x40000000
"""`sandbox_filter_type` of sandbox_check, and the bit that keeps the question out of the unified log."""

READ = os.O_RDONLY | os.O_NONBLOCK
"""Not waiting: what is hidden may be a pipe."""

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL

MAX_CONFIG = 64 * 1024 * 1024
"""Bytes. Larger than any environment the system would accept."""


def main() -> None:
    """Becomes the worker, or ends with 125 (refused), 126 or 127 (as a shell)."""
    control = socket.socket(fileno=int(sys.argv[1]))
    config = receive(control)
    control.set_inheritable(False)
    try:
        answers = attest(config)
    except OSError as error:
        refused(control, f"the boundary could not be tried: {error}")
    wrong = sorted(name for name, held in answers.items() if held is False)
    if wrong:
        refused(control, "not in force: " + ", ".join(wrong))
    control.sendall(b"attest " + json.dumps(answers).encode() + b"\n")
    try:
        os.chdir(config["cwd"])
        limit(config)
    except (OSError, ValueError) as error:
        refused(control, str(error))
    os.dup2(config["stderr"], 2)
    os.close(config["stderr"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    code = execute(config["argv"], config["env"])
    control.sendall(f"exec {code}\n".encode())
    os._exit(126 if code in (errno.EACCES, errno.EPERM, errno.ENOEXEC) else 127)


def receive(control: socket.socket) -> dict[str, Any]:
    """The configuration. Ends with 125 when it does not come whole: the spawner is gone."""
    with control.makefile("rb") as stream:
        size, running, stderr = map(int, stream.readline(64).split() or (0, 0, 0))
        data = stream.read(size) if 0 < size <= MAX_CONFIG else b""
    if not data or len(data) != size:
        os._exit(125)
    return {**json.loads(data), "running": running, "stderr": stderr}


def refused(control: socket.socket, reason: str) -> NoReturn:
    """Ends with 125 after saying why."""
    control.sendall(b"refused " + reason.replace("\n", " ").encode() + b"\n")
    os._exit(125)


def attest(config: dict[str, Any]) -> dict[str, Any]:
    """What was tried from inside: True held, False did not, a text is why it could not be tried here.

    Raises OSError where the attempt failed for another reason than the boundary, which proves nothing.
    """
    answers: dict[str, Any] = {
        "writes": cannot(lambda: create(config["forbidden_write"])),
        "signals": cannot(lambda: os.kill(os.getppid(), 0)),
    }
    if config["hidden"]:
        answers["hidden"] = all(cannot(lambda path=path: look(path), gone=True) for path in config["hidden"])
    if config["protected"]:
        answers["protected"] = all(
            cannot(lambda path=path, kind=kind: change(path) if kind == "file" else create(path), gone=True)
            for path, kind in config["protected"].items()
        )
    if config["network"] != "open":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            answers["network"] = cannot(lambda: sock.sendto(b"", DOCUMENTATION_ADDRESS))
    if config["port"]:
        # The twin of the denials above: a boundary that holds because nothing works is refused too.
        with socket.socket(socket.AF_INET) as sock:
            answers["proxy"] = not cannot(lambda: sock.connect(("127.0.0.1", config["port"])), refused=True)
    answers["sandboxed"] = sandboxed()
    answers["mach"] = cannot_look_up(APPLICATIONS)
    answers["descriptors"] = descriptors() <= {0, 1, 2, int(sys.argv[1]), config["stderr"]}
    return answers


def create(path: str) -> None:
    os.close(os.open(path, CREATE, 0o600))
    os.unlink(path)


def change(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))


def look(path: str) -> None:
    os.close(os.open(path, READ))


def cannot(act: Callable[[], object], *, gone: bool = False, refused: bool = False) -> bool:
    """Whether the act was forbidden. `gone` and `refused` are other answers that may be expected.

    Raises OSError for every other failure.
    """
    try:
        act()
    except OSError as error:
        forbidden = {errno.EPERM, errno.EACCES}
        if gone:
            forbidden |= {errno.ENOENT, errno.ENOTDIR}
        if refused:
            forbidden |= {errno.ECONNREFUSED}
        if error.errno not in forbidden:
            raise
        return True
    return False


def sandboxed() -> bool | str:
    """Whether the system says that this process is in a sandbox; elsewhere a text."""
    if sys.platform != "darwin":
        return "not macOS"
    return ctypes.CDLL(None).sandbox_check(os.getpid(), None, 0) == 1


def cannot_look_up(service: str) -> bool | str:
    """Whether the system says that this process may not look the service up, which an error does not; elsewhere a
    text.
    """
    if sys.platform != "darwin":
        return "not macOS"
    check = ctypes.CDLL(None).sandbox_check
    check.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)  # the name is variadic
    return check(os.getpid(), b"mach-lookup", GLOBAL_NAME_QUIETLY, ctypes.c_char_p(service.encode())) > 0


def descriptors() -> set[int]:
    """The open descriptors but the one that lists them."""
    found: set[int] = set()
    for name in os.listdir("/dev/fd"):
        try:
            os.fstat(int(name))
        except OSError:
            continue
        found.add(int(name))
    return found


def limit(config: dict[str, Any]) -> None:
    """No core, which the kernel would write outside; file size; processes, as this user's present number and so many
    more.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if config["file_size"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (config["file_size"], config["file_size"]))
    if config["processes"] is not None:
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        wanted = config["processes"] + config["running"]
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (wanted, wanted))


def execute(argv: list[str], env: dict[str, str]) -> int:
    """The error number that says why the worker could not be started, looked for as a shell does."""
    found = errno.ENOENT
    folders = env.get("PATH", "/usr/bin:/bin").split(":")
    for path in [argv[0]] if "/" in argv[0] else [os.path.join(folder, argv[0]) for folder in folders if folder]:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                found = error.errno or errno.EACCES
    return found


if __name__ == "__main__":
    main()
