"""The simple way: one boundary, one command, run to its end."""

from __future__ import annotations

import _socket
import os

from skep_policy.boundary import Boundary, PathRule, below
from skep_policy.launch import Launch
from skep_policy.othernames import TooMany, other_names, shared
from skep_policy.value import Value, replace

from .cgroup import Held, hold, release, renew
from .compile import compile
from .errors import BackendUnavailable
from .facts import HostFacts
from .find import find_bwrap
from .holders import end_members
from .limits import limit_layers, watched
from .relay import Stdio
from .spawn import Ended, Sandbox, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAUNCHES_FOR_SOCKETS = 8
"""Launches before a busy host, whose sockets come and go between the look and the mount, is given up on."""


class Outcome(Value):
    """What became of a command. `exit_code` is 128 + N for signal N, 126 or 127 when it could not be executed.

    A layer is True when it was in force, False when not asked for, else the reason it was not. `limit` names the
    limit that ended it or, of a command that failed, the one it met (`skep_policy.report.limit_words`). `output_error`
    is the errno for which not all of its output arrived. With `lost` the guardian was killed and everything with it:
    how the command ended is not known, and `exit_code` is that of a SIGKILL.
    """

    exit_code: int
    limit: str | None
    layers: dict[str, bool | str]
    attestation: dict[str, str]
    exec_error: int | None
    evidence: str
    output_error: int | None = None
    lost: bool = False


def over_closed_folders(boundary: Boundary) -> Boundary:
    """The boundary with each hide in a folder of another user that root without capabilities cannot enter laid over
    that folder: nothing can be mounted inside it, and the owner may open it later.
    """
    if boundary.uid != 0:
        return boundary
    hides: list[PathRule] = []
    for hide in boundary.hides:
        closed = closed_above(hide.path)
        if hide.kind != "absent" and closed and not any(below(root.path, closed) for root in boundary.roots):
            hide = replace(hide, path=closed, kind="dir")
        hides.append(hide)
    return replace(boundary, hides=tuple(dict.fromkeys(hides)))


def closed_above(path: str) -> str | None:
    """The shallowest folder above a path that is another user's and cannot be entered by others."""
    folder = ""
    for name in path.split("/")[1:-1]:
        folder += "/" + name
        try:
            info = os.stat(folder)
        except OSError:
            return None
        search = 0o010 if info.st_gid in (os.getegid(), *os.getgroups()) else 0o001
        if info.st_uid != os.geteuid() and not info.st_mode & search:
            return folder
    return None


def gathered(boundary: Boundary) -> HostFacts:
    """The facts of the host, with every name that its sockets have in the writable roots: an earlier worker may have
    given one another. Raises BackendUnavailable when there is more than is looked at.
    """
    facts = HostFacts.gather()
    roots = [root.path for root in boundary.roots if root.kind == "dir" and root.path not in boundary.mapped]
    try:
        others = {path for path, _ in other_names(shared(facts.sockets), roots)}
    except TooMany:
        raise BackendUnavailable(
            "a socket of the host has another name, and the writable roots are too large to look for it",
            fix="remove the other name of it (`find / -type s -links +1` lists them)",
            check="sockets",
        ) from None
    return replace(facts, sockets=tuple(sorted({*facts.sockets, *others}))) if others else facts


def run(
    boundary: Boundary,
    argv: Sequence[str],
    *,
    proxy: _socket.socket | None = None,
    bwrap: str | None = None,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    tty: int | None = None,
    hand_tty: bool = False,
    ignored: Sequence[int] = (),
    compiled: Callable[[Launch], None] | None = None,
    spawned: Callable[[Sandbox], None] | None = None,
    started: Callable[[], None] | None = None,
) -> Outcome:
    """Run `argv` in `boundary` and wait until nothing of it is left. Blocks; safe from any thread.

    `proxy` is an open connection to some proxy that takes listeners (`skep_proxy.Proxy.connect`), needed when the
    policy lists destinations. `compiled`, `spawned` and `started` are called with the launch before it is spawned,
    with the sandbox, and when the worker has been executed. `ignored` are the signals the worker finds ignored.

    Raises BackendUnavailable when the boundary could not be applied, and PolicyError when a disk has less left than it
    says; the command has not run then. Where the kernel
    refuses the worker a user namespace of its own, the launch is made without one, and the layers say so; where a
    socket that was to be covered has gone meanwhile, it is made for the sockets there are now. `compiled` and `spawned`
    are called again then.
    """
    boundary = over_closed_folders(boundary)
    facts = gathered(boundary)
    path = find_bwrap(environ=os.environ, explicit=bwrap, untrusted=[root.path for root in boundary.roots])
    held = hold(boundary.limits, f"skep-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        records = watched(boundary, held)
        stdio = Stdio(stdin, stdout, stderr, limit=boundary.limits.file_size)
    except BaseException:
        release(held)
        raise

    def attempt(facts: HostFacts, apart: bool) -> tuple[Launch, Ended]:
        launch = compile(
            boundary,
            argv,
            facts=facts,
            bwrap=path,
            proxied=proxy is not None,
            apart=apart,
            memory_rlimit=held.layers["memory"] is not True,
        )
        if compiled is not None:
            compiled(launch)
        sandbox = spawn(
            launch,
            proxy=proxy,
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            tty=tty,
            hand_tty=hand_tty,
            wall=boundary.limits.wall,
            cgroups=held.folders,
            limits=("file-size",) if boundary.limits.file_size is not None else (),
            watched=records,
            ignored=ignored,
        )
        return launch, _follow(sandbox, stdio, spawned, started)

    try:
        launch, ended = _launched(attempt, facts, held, boundary)
    finally:
        stdio.close()
        end_members(held.folders)
        release(held)
    layers = {**launch.layers, **limit_layers(boundary, held, records)}
    layers.update({name: note for name, note in ended.notes.items() if name in layers})
    limit = ended.limit or ("file-size" if stdio.over_limit else None)
    return Outcome(
        *(ended.exit_code, limit, layers, ended.attestation, ended.exec_error, launch.evidence),
        output_error=stdio.lost,
        lost=ended.lost,
    )


def _launched(
    attempt: Callable[[HostFacts, bool], tuple[Launch, Ended]], facts: HostFacts, held: Held, boundary: Boundary
) -> tuple[Launch, Ended]:
    """A launch and its end; made again where `run` says so. `attempt` is told whether the worker is to have a user
    namespace of its own.
    """
    apart, again = True, LAUNCHES_FOR_SOCKETS
    while True:
        try:
            return attempt(facts, apart)
        except BackendUnavailable as error:
            again -= 1
            if apart and error.check == "apart":
                apart = False
            elif again and error.check == "mount" and not all(map(os.path.lexists, (*facts.sockets, *facts.pipes))):
                facts = gathered(boundary)
            else:
                raise
            renew(held)


def _follow(
    sandbox: Sandbox,
    stdio: Stdio,
    spawned: Callable[[Sandbox], None] | None,
    started: Callable[[], None] | None,
) -> Ended:
    """How a sandbox ended. Nothing of it is left when `spawned` raises."""
    try:
        if spawned is not None:
            spawned(sandbox)
        if sandbox.begin():
            stdio.start()
    except BaseException:
        sandbox.kill()
        try:
            sandbox.wait()
        except BackendUnavailable:
            pass
        raise
    return sandbox.wait(started)
