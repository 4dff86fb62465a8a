"""Start a launch under a guardian, and follow it to its end."""

from __future__ import annotations

import _socket
import _thread
import os
import select
import time

from skep_policy.launch import Launch
from skep_policy.value import Value

from . import guardian
from .descriptors import check_destination, high, memfd, pipe
from .errors import BackendUnavailable
from .facts import sysctls
from .holders import end_holders

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Mapping, Sequence
else:
    import _signal as signal  # the module around it imports enum, which takes as long as ten of ours


MAX_DIAGNOSTICS = 65536
MAX_SET_UP = 60.0
"""Seconds from the spawn to a worker that can run: hundredths, or for ever when the server of a mount is dead."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Before the worker runs, these end the launch."""


class Ended(Value):
    """How a launch ended. `exit_code` is the worker's, 128 + N on signal N, 126 or 127 when it could not be executed.

    `limit` names the limit that ended it, `attestation` holds the shim's answers, `notes` what it could not do of
    what was optional. With `lost` the guardian was killed, so everything was, and how it ended is not known.
    """

    exit_code: int
    limit: str | None
    attestation: dict[str, str]
    notes: dict[str, str]
    exec_error: int | None = None
    lost: bool = False


class Sandbox:
    """A launch that was spawned. `wait` once; `signal` and `kill` from any thread. Not reusable."""

    def __init__(
        self, control: _socket.socket, lifeline: _socket.socket, reap: Callable[[], object], diagnostics: int
    ) -> None:
        self._control = control
        self._lifeline = lifeline
        self._reap = reap
        self._diagnostics = diagnostics
        self._said: dict[str, list[str]] = {}
        self._followed = False
        self._running = False
        self._turn = _thread.RLock()  # a handler may come while its own thread holds it
        self._early: list[int] = []
        self._bwraps: set[int] = set()
        self.on_stop: Callable[[int], None] | None = None
        """Called with the signal number when the worker's process group was stopped (Ctrl-Z); continue with
        `resume`.
        """
        self.wake: int | None = None
        """A non-blocking descriptor that is readable when a signal has come to this process (signal.set_wakeup_fd). A
        caller whose handlers forward signals needs it: one that comes just before we block would wait for the end.
        """

    def signal(self, number: int) -> None:
        """The worker gets the signal. One that comes before it runs ends the launch, or waits when it would not end a
        program either way. Nothing happens when the worker has ended.
        """
        with self._turn:
            if self._running:
                self._order(b"s" + bytes((number,)))
                return
            self._early.append(number)
            if number in ENDING:
                self.kill()

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

    def begin(self) -> bool:
        """Blocks until the worker has been executed (True) or will not be (False); `wait` says why.

        The worker is not executed before this is called, and not when the guardian is gone by then.
        """
        if not self._followed:
            late = time.monotonic() + MAX_SET_UP
            for line in self._lines_of(self._control, self._lifeline, late):
                word, _, rest = line.partition(" ")
                self._said.setdefault(word, []).append(rest)
                if word == "ready" and "late" not in self._said:
                    self._tell_to_run()
            self._followed = True
            with self._turn:
                self._running = "ready" in self._said and "exec" not in self._said
                for number in self._early if self._running else ():
                    if number not in ENDING:
                        self._order(b"s" + bytes((number,)))
        return self._running

    def _tell_to_run(self) -> None:
        poll = select.poll()
        poll.register(self._lifeline, 0)
        if not poll.poll(0):  # no POLLHUP: the guardian is there
            try:
                self._control.send(b"run\n")
            except OSError:
                pass

    def _lines_of(
        self, sock: _socket.socket, other: _socket.socket | None = None, late: float | None = None
    ) -> Iterator[str]:
        """Lines of a socket up to its end, or up to the end of `other` when there is nothing more to read: a bwrap that
        was orphaned while it set up may hold `sock` for ever. At the time `late` a set-up that is not done is killed.
        """
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if other is not None:
            poll.register(other, 0)
        if self.wake is not None:
            poll.register(self.wake, select.POLLIN)
        pending = b""
        while True:
            left = None if late is None or "ready" in self._said else max(0.0, late - time.monotonic()) * 1000
            ready = dict(poll.poll(left))
            if not ready:
                self._said["late"], late = [], None
                self.kill()
                continue
            if self.wake in ready:
                os.read(self.wake, 4096)  # the handlers have run by now
                continue
            if sock.fileno() not in ready:
                return
            try:
                block = sock.recv(65536)
            except ConnectionResetError:
                return
            if not block:
                return
            *lines, pending = (pending + block).split(b"\n")
            for line in lines:
                yield line.decode(errors="backslashreplace")

    def wait(self, started: Callable[[], None] | None = None) -> Ended:
        """Blocks until nothing of the sandbox is left. `started` is called when the worker has been executed.

        Raises BackendUnavailable when the boundary could not be applied: the worker never ran. Its `check` is "apart"
        when only the worker's own user namespace was refused, and the proxy has not been spoken to.
        """
        try:
            if self.begin() and started is not None:
                started()
            words = self._follow_guardian()
            if "exit" not in words:
                end_holders(self._diagnostics, self._bwraps)
        finally:
            self._lifeline.close()
            self._control.close()
            self._reap()
            diagnostics = _drain(self._diagnostics)
        said = self._said
        if "failed" in words or ("exit" not in words and not self._running):
            raise BackendUnavailable(f"the guardian of the sandbox failed: {words.get('failed', 'it was killed')}")
        if "unable" in said:
            raise BackendUnavailable(f"the kernel refuses {said['unable'][0]}", check="apart")
        if "refused" in said:
            raise BackendUnavailable(
                f"the sandbox does not hold as it was set up, so nothing ran in it: {said['refused'][0]}",
                fix="`skep doctor` tries each part of it",
                check="attestation",
            )
        limit, ending = words.get("limit"), next((number for number in self._early if number in ENDING), None)
        exit_code = int(words.get("exit", 128 + signal.SIGKILL))
        if ending is not None and limit is None:
            exit_code = 128 + ending  # by us, and so the guardian knows of a SIGKILL only
        elif "late" in said or ("ready" not in said and limit == "wall"):
            raise BackendUnavailable(
                "the sandbox was not set up in time",
                fix="look for a file system that does not answer (`skep policy show` names the paths), or raise --wall",
                check="set-up",
            )
        elif "ready" not in said and limit is None:
            from .diagnose import SYSCTLS, classify

            raise classify(diagnostics, exit_code, sysctls(SYSCTLS))
        return Ended(
            exit_code=exit_code,
            limit=limit,
            attestation=_pairs(said.get("attest", ())),
            notes=_pairs(said.get("note", ())),
            exec_error=int(said["exec"][0]) if "exec" in said else None,
            lost="exit" not in words and ending is None,
        )

    def _follow_guardian(self) -> dict[str, str]:
        words: dict[str, str] = {}
        for line in self._lines_of(self._lifeline):
            word, _, rest = line.partition(" ")
            if word == "stopped":
                if self.on_stop is not None:
                    self.on_stop(int(rest))
                else:
                    self.resume()
            elif word == "bwrap":
                self._bwraps = {pid for pid in (int(rest), guardian.first_child(int(rest))) if pid is not None}
            else:
                words[word] = rest
        return words


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
    stdin: int | None = 0,
    stdout: int | None = 1,
    stderr: int | None = 2,
    tty: int | None = None,
    hand_tty: bool = False,
    wall: float | None = None,
    cgroups: Sequence[str] = (),
    limits: Sequence[str] = (),
    watched: Sequence[str] = (),
    ignored: Sequence[int] = (),
) -> Sandbox:
    """Start the launch. The descriptors reach the worker as they are: see `relay` for those that must not. None is the
    sandbox's own /dev/null.

    `proxy` is an open connection to some proxy that takes listeners; the caller keeps its own copy open for as long
    as the sandbox shall reach it. `tty` is the controlling terminal: handed to the worker's process group at once
    with `hand_tty`, else by
    `Sandbox.resume` when the worker was stopped for touching it, as a shell does; without it the worker has no terminal
    at all. `cgroups` are folders to
    enter, removed at the end. `limits` names limits the launch carries as rlimits, `watched` are those the guardian
    looks after (records of `watch.Watch`). `ignored` are the signals the worker finds ignored. `wall` is in seconds.

    Raises BackendUnavailable when a mount destination below a writable root goes through a link.
    """
    for root, path in launch.destinations:
        check_destination(root, path)
    opened: list[int] = []
    own_control, its_control = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    diagnostics = -1
    try:
        diagnostics, its_diagnostics = pipe(opened)
        nowhere = pipe(opened)  # what bwrap itself has where the worker has /dev/null: no node of the host
        fds = {name: memfd(name, content, opened) for name, content in launch.files.items()}
        fds["control"] = high(its_control.fileno(), opened)
        if proxy is not None:
            fds["proxy"] = high(proxy.fileno(), opened)
        its_stderr = high(nowhere[1] if stderr is None else stderr, opened)
        nulls = [number for number, fd in ((0, stdin), (1, stdout), (its_stderr, stderr)) if fd is None]
        extra = [f"stderr={its_stderr}", *(f"null={fd}" for fd in nulls), *(f"ignore={number}" for number in ignored)]
        # Not over the control socket: it may be larger than what that takes, and be read much later or never.
        config = "".join(record + "\0" for record in extra).encode() + launch.config
        fds["config"] = memfd("config", config, opened)
        args = b"".join(os.fsencode(_fill(word, fds)) + b"\0" for word in launch.args)
        fds["args"] = memfd("args", args, opened)
        records: dict[str, Sequence[object]] = {
            "argv": [_fill(word, fds) for word in launch.argv],
            "keep": [*fds.values(), its_stderr],
            "stdin": [high(nowhere[0] if stdin is None else stdin, opened)],
            "stdout": [high(nowhere[1] if stdout is None else stdout, opened)],
            "diagnostics": [its_diagnostics],
            "tty": [] if tty is None else [high(tty, opened)],
            "hand": [1] if hand_tty else [],
            "wall": [] if wall is None else [wall],
            "cgroup": cgroups,
            "limit": limits,
            "watch": watched,
        }
        lifeline, reap = _start_guardian(_plan(records), sorted(set(opened) - {diagnostics, *nowhere}))
    except BaseException:
        own_control.close()
        if diagnostics >= 0:
            os.close(diagnostics)
            opened.remove(diagnostics)
        raise
    finally:
        its_control.close()
        for fd in opened:
            if fd != diagnostics:
                os.close(fd)
    return Sandbox(own_control, lifeline, reap, diagnostics)


def _fill(word: str, fds: Mapping[str, int]) -> str:
    if word.startswith("{fd:") and word.endswith("}"):
        return str(fds[word[4:-1]])
    return word


def _plan(records: Mapping[str, Sequence[object]]) -> bytes:
    return (
        b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, values in records.items() for value in values) + b"\0"
    )


def _start_guardian(plan: bytes, needed: list[int]) -> tuple[_socket.socket, Callable[[], object]]:
    """Our end of its lifeline, and what reaps it. Forked from a process with one thread, else run as a program."""
    ours, its = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
    low: list[int] = []
    try:
        its_fd = high(its.fileno(), low)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, guardian.HELD)  # it lets them come once it ignores them
        try:
            if len(os.listdir("/proc/self/task")) == 1:
                pid = os.fork()
                if pid == 0:
                    guardian.guard(plan, its_fd)
            else:
                pid = _run_guardian(its_fd, len(plan), needed)
                ours.sendall(plan)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except BaseException:
        ours.close()
        raise
    finally:
        its.close()
        for fd in low:
            os.close(fd)
    return ours, lambda: _reap(pid)


PROGRAM = """
import sys
package = type(sys)("skep_bwrap")
package.__path__ = [sys.argv.pop(1)]
sys.modules["skep_bwrap"] = package
from skep_bwrap.guardian import main
main()
"""
"""The guardian as a program: its package by name alone, since without site-packages `__init__` could not be run."""


def _run_guardian(lifeline: int, size: int, needed: list[int]) -> int:
    import subprocess
    import sys

    interpreter = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    process = subprocess.Popen(
        [interpreter, "-I", "-S", "-c", PROGRAM, os.path.dirname(guardian.__file__), str(lifeline), str(size)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[lifeline, *needed],
        env={},
    )
    process.returncode = 0  # reaped by us, not by subprocess
    return process.pid


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass  # the caller reaps every child itself, or ignores SIGCHLD
