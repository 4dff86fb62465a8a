"""Start a launch under a guardian, and follow it to its end."""

from __future__ import annotations

import _socket
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from skep_policy.launch import Launch

from . import guardian
from .diagnose import classify
from .errors import BackendUnavailable

MAX_DIAGNOSTICS = 65536


class Ended(msgspec.Struct, frozen=True):
    """How a launch ended. `exit_code` is the worker's, 128 + N on signal N, 126 or 127 when it could not be executed.

    `limit` names the limit that ended it, `attestation` holds the shim's answers, `notes` what it could not do of
    what was optional.
    """

    exit_code: int
    limit: str | None
    attestation: dict[str, str]
    notes: dict[str, str]
    exec_error: int | None = None


class Sandbox:
    """A launch that was spawned. `wait` once; `signal` and `kill` from any thread. Not reusable."""

    def __init__(
        self, control: _socket.socket, lifeline: _socket.socket, reap: Callable[[], object], diagnostics: int
    ) -> None:
        self._control = control
        self._lifeline = lifeline
        self._reap = reap
        self._diagnostics = diagnostics
        self.on_stop: Callable[[int], None] | None = None
        """Called with the signal number when the worker's process group was stopped (Ctrl-Z); continue with
        `resume`.
        """

    def signal(self, number: int) -> None:
        """The worker gets the signal. Nothing happens when it has ended."""
        self._order(b"s" + bytes((number,)))

    def resume(self) -> None:
        """A stopped worker goes on, with the terminal if it had it."""
        self._order(b"c")

    def kill(self) -> None:
        """Everything of the sandbox ends; `wait` returns soon."""
        self._order(b"k")

    def _order(self, order: bytes) -> None:
        try:
            self._lifeline.send(order)
        except OSError:
            pass

    def wait(self, started: Callable[[], None] | None = None) -> Ended:
        """Blocks until nothing of the sandbox is left. `started` is called when the worker has been executed.

        Raises BackendUnavailable when the boundary could not be applied: the worker never ran.
        """
        try:
            said = self._follow_shim()
            ready = "ready" in said and "exec" not in said
            if ready and started is not None:
                started()
            words = self._follow_guardian()
        finally:
            self._lifeline.close()
            self._control.close()
            self._reap()
            diagnostics = _drain(self._diagnostics)
        if "failed" in words or "exit" not in words:
            raise BackendUnavailable(f"the guardian of the sandbox failed: {words.get('failed', 'it was killed')}")
        if "refused" in said:
            raise BackendUnavailable(
                f"the boundary is not what it should be: {said['refused'][0]}", check="attestation"
            )
        limit = words.get("limit")
        if "ready" not in said and limit is None:
            raise classify(diagnostics, int(words["exit"]))
        return Ended(
            exit_code=int(words["exit"]),
            limit=limit,
            attestation=_pairs(said.get("attest", ())),
            notes=_pairs(said.get("note", ())),
            exec_error=int(said["exec"][0]) if "exec" in said else None,
        )

    def _follow_shim(self) -> dict[str, list[str]]:
        """Every line of the control descriptor by its first word, up to its end."""
        said: dict[str, list[str]] = {}
        for line in _lines(self._control):
            word, _, rest = line.partition(" ")
            said.setdefault(word, []).append(rest)
        return said

    def _follow_guardian(self) -> dict[str, str]:
        words: dict[str, str] = {}
        for line in _lines(self._lifeline):
            word, _, rest = line.partition(" ")
            if word == "stopped":
                if self.on_stop is not None:
                    self.on_stop(int(rest))
                else:
                    self.resume()
            else:
                words[word] = rest
        return words


def _lines(sock: _socket.socket) -> Iterator[str]:
    pending = b""
    while True:
        try:
            block = sock.recv(65536)
        except ConnectionResetError:
            return
        if not block:
            return
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            yield line.decode(errors="backslashreplace")


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def _drain(fd: int) -> str:
    """What bwrap and the shim wrote as errors. The writers are gone, so nothing is waited for."""
    os.set_blocking(fd, False)
    text = b""
    try:
        while len(text) < MAX_DIAGNOSTICS and (block := os.read(fd, 65536)):
            text += block
    except BlockingIOError:
        pass
    os.close(fd)
    return text.decode(errors="replace")


def spawn(
    launch: Launch,
    *,
    proxy: _socket.socket | None = None,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    tty: int | None = None,
    hand_tty: bool = False,
    wall: float | None = None,
    cgroups: Sequence[str] = (),
    ignored: Sequence[int] = (),
) -> Sandbox:
    """Start the launch. The descriptors reach the worker as they are: see `relay` for those that must not.

    `proxy` is an open connection to some proxy that takes listeners; the caller keeps its own copy open for as long
    as the sandbox shall reach it. `tty` is the controlling terminal: handed to the worker's process group at once
    with `hand_tty`, else by
    `Sandbox.resume` when the worker was stopped for touching it, as a shell does. `cgroups` are folders to
    enter, removed at the end. `ignored` are the signals the worker finds ignored. `wall` is in seconds.

    Raises BackendUnavailable when a mount destination below a writable root goes through a link.
    """
    for root, path in launch.destinations:
        check_destination(root, path)
    own_control, its_control = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    diagnostics, its_diagnostics = os.pipe()
    fds = {name: _memfd(name, content) for name, content in launch.files.items()}
    opened = [*fds.values()]
    try:
        fds["control"] = its_control.fileno()
        if proxy is not None:
            fds["proxy"] = proxy.fileno()
        its_stderr = os.dup(stderr)
        opened.append(its_stderr)
        fds["args"] = _memfd("args", b"".join(os.fsencode(_fill(word, fds)) + b"\0" for word in launch.args))
        opened.append(fds["args"])
        plan = _plan(
            argv=[_fill(word, fds) for word in launch.argv],
            keep=[*fds.values(), its_stderr],
            stdin=[stdin],
            stdout=[stdout],
            diagnostics=[its_diagnostics],
            tty=[] if tty is None else [tty],
            hand=[1] if hand_tty else [],
            wall=[] if wall is None else [wall],
            cgroup=cgroups,
        )
        lifeline, reap = _start_guardian(
            plan, [*fds.values(), its_stderr, stdin, stdout, its_diagnostics, *([] if tty is None else [tty])]
        )
    finally:
        its_control.close()
        os.close(its_diagnostics)
        for fd in opened:
            os.close(fd)
    sandbox = Sandbox(own_control, lifeline, reap, diagnostics)
    extra = [f"stderr={its_stderr}", *(f"ignore={number}" for number in ignored)]
    try:
        own_control.sendall("".join(record + "\0" for record in extra).encode() + launch.config)
    except (BrokenPipeError, ConnectionResetError):
        pass  # it failed already; `wait` says why
    return sandbox


def check_destination(root: str, path: str) -> None:
    """Raises BackendUnavailable when a link stands on the way from a writable root to a mount point below it.

    bwrap would follow it while it sets up, outside of the boundary. A worker of an earlier run may have put it there.
    """
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(root, flags)
    try:
        for name in os.path.relpath(path, root).split("/"):
            try:
                deeper = os.open(name, flags, dir_fd=here)
            except FileNotFoundError:
                raise BackendUnavailable(f"{path} was there a moment ago and is gone", fix="try again") from None
            os.close(here)
            here = deeper
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise BackendUnavailable(
                    f"{path} goes through a link below the writable {root}", fix=f"remove the link {name}"
                )
    finally:
        os.close(here)


def _memfd(name: str, content: bytes) -> int:
    fd = os.memfd_create(f"skep-{name}", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _fill(word: str, fds: Mapping[str, int]) -> str:
    if word.startswith("{fd:") and word.endswith("}"):
        return str(fds[word[4:-1]])
    return word


def _plan(**records: Sequence[object]) -> bytes:
    return (
        b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, values in records.items() for value in values) + b"\0"
    )


def _start_guardian(plan: bytes, needed: list[int]) -> tuple[_socket.socket, Callable[[], object]]:
    """Our end of its lifeline, and what reaps it. Forked from a process with one thread, else run as a program."""
    ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    try:
        if len(os.listdir("/proc/self/task")) == 1:
            pid = os.fork()
            if pid == 0:
                guardian.guard(plan, its.fileno())
            return ours, lambda: os.waitpid(pid, 0)
        import subprocess
        import sys

        process = subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-S", guardian.__file__, str(its.fileno())],
            pass_fds=sorted({its.fileno(), *needed} - {0, 1, 2}),
            env={},
        )
        ours.sendall(plan)
        return ours, process.wait
    finally:
        its.close()
