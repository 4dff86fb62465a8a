"""Start a launch under a guardian, and follow it to its end."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from skep_policy.disks import Disk
from skep_policy.launch import Launch

from .channels import MARKER
from .compile import CONTROL, PROFILE
from .diagnose import classify
from .errors import BackendUnavailable
from .evaluate import Profile
from .facts import kernel_spelling
from .places import canonical
from .sockets import NETSTAT, parse_netstat

MAX_DIAGNOSTICS = 65536

MAX_PIDS = 65536

PROC_UID_ONLY = 4
"""proc_info.h: processes by effective user."""


class Ended(msgspec.Struct, frozen=True):
    """How a launch ended. `exit_code` is the worker's, 128 + N on signal N, 126 or 127 when it could not be executed.

    `limit` names the limit that ended it, `attestation` holds the answers of the first program inside, `left` counts
    processes that could not be ended.
    """

    exit_code: int
    limit: str | None
    attestation: dict[str, bool | str]
    left: int = 0
    exec_error: int | None = None


def first_program() -> tuple[str, str, tuple[str, ...]]:
    """The interpreter, the shim, and what they read: arguments `python`, `shim` and `reads` of `compile`."""
    python = os.path.realpath(sys.executable)
    shim = os.path.realpath(os.path.join(os.path.dirname(__file__), "shim.py"))
    return python, shim, tuple(dict.fromkeys(map(os.path.realpath, (sys.base_prefix, sys.base_exec_prefix))))


def new_tag() -> str:
    """A name for a run that nobody can guess: a process of another run must not carry its mark."""
    return "skep-" + secrets.token_hex(12)


def new_token() -> str:
    """What tells the clients of a run's proxy from every other program of the machine."""
    return secrets.token_urlsafe(24)


def count_processes() -> int:
    """How many processes this user has; 0 off macOS."""
    if sys.platform != "darwin":
        return 0
    pids = (ctypes.c_int * MAX_PIDS)()
    size = ctypes.CDLL(None).proc_listpids(PROC_UID_ONLY, os.getuid(), pids, ctypes.sizeof(pids))
    return max(size, 0) // ctypes.sizeof(ctypes.c_int)


def listening() -> tuple[str, ...]:
    """Paths of the Unix sockets that programs of the host have bound: `host_sockets` of `compile`. None off macOS."""
    if sys.platform != "darwin":
        return ()
    done = subprocess.run(NETSTAT, capture_output=True, text=True, errors="replace", timeout=10, check=False, env={})
    if done.returncode:
        raise BackendUnavailable(f"netstat failed: {done.stderr.strip()[:200]}", check="sockets")
    return tuple(kernel_spelling(path) for path in parse_netstat(done.stdout))


class Sandbox:
    """A launch that was spawned. `wait` once; `signal` and `kill` from any thread. Not reusable."""

    def __init__(
        self,
        control: socket.socket,
        lifeline: socket.socket,
        process: subprocess.Popen[bytes],
        *,
        folder: str,
        diagnostics: int,
    ) -> None:
        self._control = control
        self._lifeline = lifeline
        self._process = process
        self._folder = folder
        self._diagnostics = diagnostics
        self.on_stop: Callable[[int], None] | None = None
        """Called with the signal number when the worker was stopped (Ctrl-Z); continue with `resume`."""
        self.wake: int | None = None
        """A non-blocking descriptor that is readable when a signal has come to this process (signal.set_wakeup_fd). A
        caller whose handlers forward signals needs it: one that comes just before we block would wait for the end.
        """

    def signal(self, number: int) -> None:
        """The worker gets the signal. Nothing happens when it has ended."""
        self._order(b"s" + bytes((number,)))

    def resume(self) -> None:
        """A stopped worker goes on."""
        self._order(b"c")

    def kill(self) -> None:
        """Everything of the sandbox ends; `wait` returns soon."""
        self._order(b"k")

    def _order(self, order: bytes) -> None:
        try:
            self._lifeline.send(order)
        except OSError:
            pass

    def wait(self, started: Callable[[], None] | None = None, ended: Callable[[int], None] | None = None) -> Ended:
        """Blocks until nothing of the sandbox is left. `started` is called when the worker has been executed, `ended`
        with the exit status when only the program that reads the log still runs.

        Raises BackendUnavailable when the boundary could not be applied: the worker never ran.
        """
        try:
            said = dict(map(_split, _lines(self._control, self.wake)))
            if "attest" in said and "exec" not in said and "refused" not in said and started is not None:
                started()
            words = self._follow_guardian()
            if ended is not None and "exit" in words:
                ended(int(words["exit"]))
        finally:
            self._lifeline.close()
            self._control.close()
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            diagnostics = _drain(self._diagnostics)
        if "failed" in words or "exit" not in words:
            raise BackendUnavailable(f"the guardian of the sandbox failed: {words.get('failed', 'it was killed')}")
        if "refused" in said:
            raise BackendUnavailable(
                f"the sandbox does not hold as it was set up, so nothing ran in it: {said['refused']}",
                check="attestation",
            )
        if "attest" not in said and "limit" not in words:
            raise classify(diagnostics, int(words["exit"]))
        return Ended(
            exit_code=int(words["exit"]),
            limit=words.get("limit"),
            attestation=msgspec.json.decode(said.get("attest", "{}"), type=dict[str, bool | str]),
            left=int(words.get("left", 0)),
            exec_error=int(said["exec"]) if "exec" in said else None,
        )

    def _follow_guardian(self) -> dict[str, str]:
        words: dict[str, str] = {}
        for word, rest in map(_split, _lines(self._lifeline, self.wake)):
            if word != "stopped":
                words[word] = rest
                if word in ("exit", "failed"):
                    break
            elif self.on_stop is not None:
                self.on_stop(int(rest))
            else:
                self.resume()
        return words


def spawn(
    launch: Launch,
    *,
    tag: str,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    terminal: int | None = None,
    wall: float | None = None,
    disks: Sequence[Disk] = (),
    running: int | None = None,
    folder: str | None = None,
    remove: Sequence[str] = (),
    user: int | None = None,
    log: tuple[Sequence[str], int] | None = None,
) -> Sandbox:
    """Start the launch. `tag` is the one it was compiled with.

    The descriptors reach the worker as they are: a terminal must be the worker's own (`relay.Terminal`), never the
    user's. `terminal` becomes the controlling terminal. `wall` is in seconds; `disks` are looked at for what is
    to be left of them; `running` counts this user's processes,
    to which `limits.processes` is added (asked of the system when None). The profile stands in a new folder below
    `folder` (the temporary folder), readable by this user alone, until the end. `remove` are folders that are gone at
    the end as well, whatever becomes of this process; `user` is the user's terminal, set back when this process dies.
    `log` is a command that runs beside the worker, outside, and the descriptor it writes to, which is closed here.

    From here on the environment this process was started with cannot be read from outside (`blank_environment`).

    Raises BackendUnavailable when the worker could write its own profile, or a descriptor is the user's terminal.
    """
    kept = [] if log is None else [log[1]]
    ours: list[socket.socket] = []
    diagnostics, place = -1, None
    try:
        blank_environment()
        for fd in (stdin, stdout, stderr):
            if os.isatty(fd) and (terminal is None or not os.path.sameopenfile(fd, terminal)):
                raise BackendUnavailable("a worker with the user's terminal can type on it", check="terminal")
        place = os.path.realpath(tempfile.mkdtemp(prefix="skep-", dir=folder))
        path = _profile(launch, place)
        own_control, its_control = _pair(ours, kept)
        own_lifeline, its_lifeline = _pair(ours, kept)
        diagnostics, its_diagnostics = os.pipe()
        kept.append(its_diagnostics)
        # The worker's own 2 travels beside: what sandbox-exec says must not stand among the worker's words.
        its_stderr = _above(stderr, kept)
        fills = {f"{{path:{PROFILE}}}": path, f"{{fd:{CONTROL}}}": str(its_control)}
        plan = _plan(
            argv=[_fill(word, fills) for word in launch.argv],
            keep=[its_control, its_stderr],
            stdin=[_above(stdin, kept)],
            stdout=[_above(stdout, kept)],
            stderr=[its_diagnostics],
            terminal=[] if terminal is None else [terminal],
            marker=[MARKER + tag],
            wall=[] if wall is None else [wall],
            disk=[f"{disk.size} {disk.files} {disk.path}" for disk in disks],
            remove=[place, *remove],
            user=[] if user is None else [_above(user, kept)],
            modes=[] if user is None else [_modes(user)],
            log=[] if log is None else list(log[0]),
            log_output=[] if log is None else [log[1]],
        )
        process = _guardian(its_lifeline, plan, (*kept, *(() if terminal is None else (terminal,))))
        own_lifeline.sendall(plan)
    except BaseException:
        for sock in ours:
            sock.close()
        if diagnostics >= 0:
            os.close(diagnostics)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        for fd in kept:
            os.close(fd)
    head = f"{len(launch.config)} {count_processes() if running is None else running} {its_stderr}\n".encode()
    threading.Thread(target=_tell, args=(own_control, head + launch.config), daemon=True).start()
    return Sandbox(own_control, own_lifeline, process, folder=place, diagnostics=diagnostics)


def _profile(launch: Launch, place: str) -> str:
    """Where the profile stands now. Raises BackendUnavailable when the worker may write there."""
    path = os.path.join(place, "profile.sb")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(launch.files[PROFILE])
    if Profile(launch.files[PROFILE].decode()).allows("file-write-data", canonical(path)):
        raise BackendUnavailable(f"the worker may write {place}, where its profile stands", check="profile")
    return path


def _pair(ours: list[socket.socket], kept: list[int]) -> tuple[socket.socket, int]:
    """Our end of a connection, and a descriptor of the other."""
    own, its = socket.socketpair()
    ours.append(own)
    kept.append(fd := its.detach())
    return own, fd


def _guardian(lifeline: int, plan: bytes, inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    """The guardian, which waits for its plan."""
    program = os.path.join(os.path.dirname(__file__), "guardian.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", program, str(lifeline), str(len(plan))],
        pass_fds=inherited,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={},
    )


def _tell(control: socket.socket, config: bytes) -> None:
    """The configuration, as the other end reads it; nothing is said when it never will."""
    try:
        control.sendall(config)
    except OSError:
        pass


def _drain(fd: int) -> str:
    """What sandbox-exec and the shim wrote as errors. The writers are gone, so nothing is waited for."""
    os.set_blocking(fd, False)
    text = b""
    try:
        while len(text) < MAX_DIAGNOSTICS and (block := os.read(fd, 65536)):
            text += block
    except BlockingIOError:
        pass
    os.close(fd)
    return text.decode(errors="replace")


def _above(fd: int, kept: list[int]) -> int:
    """A copy of the descriptor that is none of 0, 1 and 2, which are the guardian's own there."""
    kept.append(copy := fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
    return copy


def _modes(terminal: int) -> str:
    """How a terminal is set now, in a form the guardian reads."""
    *flags, characters = termios.tcgetattr(terminal)
    shown = [one.hex() if isinstance(one, bytes) else one for one in characters]
    return msgspec.json.encode([*flags, shown]).decode()


def _fill(word: str, values: Mapping[str, str]) -> str:
    return values.get(word, word)


def _plan(**records: list[object] | list[str] | list[int] | list[float]) -> bytes:
    lines = [f"{key}={value}" for key, values in records.items() for value in values]
    return b"".join(os.fsencode(line) + b"\0" for line in lines) + b"\0"


def _lines(sock: socket.socket, wake: int | None) -> Iterator[str]:
    poll = select.poll()
    for fd in (sock.fileno(), *(() if wake is None else (wake,))):
        poll.register(fd, select.POLLIN)
    pending = b""
    while True:
        ready = dict(poll.poll())
        if wake in ready:
            os.read(wake, 4096)  # the handlers have run by now
            continue
        try:
            block = sock.recv(65536)
        except ConnectionResetError:
            return
        if not block:
            return
        *lines, pending = (pending + block).split(b"\n")
        for line in lines:
            yield line.decode(errors="backslashreplace")


def _split(line: str) -> tuple[str, str]:
    word, _, rest = line.partition(" ")
    return word, rest


def blank_environment() -> None:
    """The environment this process was started with can no longer be read from outside; its own view stays.

    macOS lets every process of a user read the memory where another one's environment was put at its start, sandboxed
    or not. The strings move elsewhere and their first place is zeroed. Nothing happens off macOS.
    """
    if sys.platform != "darwin":
        return
    system = ctypes.CDLL(None)
    system._NSGetEnviron.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
    system.strdup.restype = ctypes.c_void_p
    system.strdup.argtypes = (ctypes.c_void_p,)
    strings = system._NSGetEnviron().contents
    index = 0
    while place := strings[index]:
        length = len(ctypes.string_at(place))
        strings[index] = system.strdup(place)
        ctypes.memset(place, 0, length)
        index += 1
