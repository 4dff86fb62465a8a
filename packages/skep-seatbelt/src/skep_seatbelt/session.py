"""The simple way: one boundary, one command, run to its end."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence

import msgspec
from skep_policy import replace
from skep_policy.boundary import Access, Boundary, PathRule
from skep_policy.disks import NO_DISK, Disk, disks
from skep_policy.launch import Launch

from .compile import SANDBOX_EXEC, Proxy, compile
from .denials import Denial
from .errors import BackendUnavailable
from .facts import settle
from .keys import refuse
from .log import Log
from .mapping import at_their_place
from .probe import blocker
from .relay import Terminal
from .spawn import Ended, Sandbox, first_program, listening, new_tag, spawn
from .stdio import Stdio

SCRATCH = "t"
"""Short: the address of a Unix socket has 104 bytes, and this user's own folder takes 50 of them."""

USER_TEMPORARY = 65537
"""unistd.h of macOS: _CS_DARWIN_USER_TEMP_DIR, which Python has no name for."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of a command. `exit_code` is 128 + N for signal N, 126 or 127 when it could not be executed.

    A layer is True when it was in force, False when not asked for, else the reason it was not. `limit` names the
    limit that ended it. `output_error` is the errno for which not all of its output arrived. `left` counts processes
    that could not be ended. `denials` are what the unified log said, which can miss some.
    """

    exit_code: int
    limit: str | None
    layers: dict[str, bool | str]
    attestation: dict[str, bool | str]
    exec_error: int | None
    evidence: str
    output_error: int | None
    left: int
    denials: tuple[Denial, ...]


def run(
    boundary: Boundary,
    argv: Iterable[str],
    *,
    proxy: Proxy | None = None,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    services: Iterable[str] = (),
    listen: bool = False,
    sandbox_exec: str = SANDBOX_EXEC,
    log: str = Log.PROGRAM,
    temporary: str | None = None,
    compiled: Callable[[Launch], None] | None = None,
    spawned: Callable[[Sandbox], None] | None = None,
    started: Callable[[], None] | None = None,
) -> Outcome:
    """Run `argv` in `boundary` and wait until nothing of it is left. Blocks.

    `proxy` is where the run's proxy listens already, needed when the policy lists destinations. A `mapped` folder is
    worked on where it is. The worker's TMPDIR is a folder of its own below `temporary` (this user's folder for such),
    gone at the end whatever becomes of this process. `compiled`, `spawned` and `started` are called with the launch
    before it is spawned, with the sandbox, and when the worker has been executed.

    Raises Unenforceable for what macOS cannot hold, BackendUnavailable when the boundary could not be applied; the
    command has not run then.
    """
    boundary = at_their_place(boundary)
    refuse(boundary)
    if found := blocker(sandbox_exec=sandbox_exec, uid=boundary.uid):
        raise BackendUnavailable(found.detail, fix=found.fix, check=found.id)
    left = disks(boundary)
    place = tempfile.mkdtemp(prefix="skep-", dir=temporary or user_temporary())
    try:
        scratch = os.path.join(place, SCRATCH)
        os.mkdir(scratch, 0o700)
        boundary = settle(with_scratch(boundary, scratch))
        stdio = Stdio(stdin, stdout, stderr, limit=boundary.limits.file_size)
        try:
            tag = new_tag()
            python, shim, reads = first_program()
            launch = compile(
                boundary,
                argv,
                tag=tag,
                python=python,
                shim=shim,
                reads=reads,
                proxy=proxy,
                services=services,
                listen=listen,
                terminal=stdio.terminal and stdio.terminal.name,
                host_sockets=listening(),
                sandbox_exec=sandbox_exec,
            )
            if compiled is not None:
                compiled(launch)
            denials = Log(tag, program=log)
            ended = _follow(launch, boundary, left, tag, place, stdio, denials, spawned, started)
        finally:
            stdio.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    limits = {
        "wall": boundary.limits.wall is not None,
        "memory": False,
        "disk-free": bool(left) or NO_DISK,
        "denials": denials.state,
    }
    return Outcome(
        exit_code=ended.exit_code,
        limit=ended.limit or ("file-size" if stdio.over_limit else None),
        layers={**launch.layers, **limits},
        attestation=ended.attestation,
        exec_error=ended.exec_error,
        evidence=launch.evidence,
        output_error=stdio.lost,
        left=ended.left,
        denials=denials.found(),
    )


def with_scratch(boundary: Boundary, scratch: str) -> Boundary:
    """The boundary with a writable folder for what is temporary, named by the variables programs look at: by the name
    it was given, which is the shorter one where links lead to it.
    """
    root = PathRule(os.path.realpath(scratch), Access.WRITE, "dir", "the run's temporary files")
    env = {**boundary.env, "TMPDIR": scratch}
    env.update({name: scratch for name in ("TMP", "TEMP") if name in env})
    return replace(boundary, roots=(*boundary.roots, root), env=env)


def user_temporary() -> str:
    """The folder for temporary files that is this user's alone, where macOS has one."""
    try:
        return os.confstr(USER_TEMPORARY) or tempfile.gettempdir()
    except (OSError, ValueError):
        return tempfile.gettempdir()


def _follow(
    launch: Launch,
    boundary: Boundary,
    left: Sequence[Disk],
    tag: str,
    place: str,
    stdio: Stdio,
    denials: Log,
    spawned: Callable[[Sandbox], None] | None,
    started: Callable[[], None] | None,
) -> Ended:
    terminal = stdio.terminal
    sandbox = spawn(
        launch,
        tag=tag,
        stdin=stdio.stdin,
        stdout=stdio.stdout,
        stderr=stdio.stderr,
        terminal=terminal and terminal.worker,
        wall=boundary.limits.wall,
        disks=left,
        folder=place,
        remove=(place,),
        user=stdio.user,
        log=denials.begin(),
    )
    try:
        sandbox.on_stop = _stopped(sandbox, terminal)
        if spawned is not None:
            spawned(sandbox)
        stdio.start()
    except BaseException:
        sandbox.kill()
        try:
            sandbox.wait()
        except BackendUnavailable:
            pass
        raise
    return sandbox.wait(started, denials.settle)


def _stopped(sandbox: Sandbox, terminal: Terminal | None) -> Callable[[int], None]:
    """When the worker was stopped we stop as well, and the shell takes over; it continues both. Where no shell would
    (no terminal, or an orphaned process group, whose SIGTSTP the kernel drops), the worker goes on at once.
    """

    def stopped(number: int) -> None:
        if terminal is not None:
            terminal.restore()
            os.kill(os.getpid(), signal.SIGTSTP)
            terminal.again()
        sandbox.resume()

    return stopped
