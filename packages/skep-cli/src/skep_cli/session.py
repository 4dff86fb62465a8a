"""One worker in one boundary: proxy, sandbox, signals and terminal together, from before the spawn to the last
event.
"""

from __future__ import annotations

import _socket
import gc
import os
import sys
import time

from skep_bwrap.errors import BackendUnavailable
from skep_bwrap.session import run
from skep_policy.boundary import Access, Boundary
from skep_policy.events import EgressEvent
from skep_policy.launch import Launch
from skep_policy.paths import Tree
from skep_policy.report import Egress, Finding
from skep_policy.value import Record

from . import terminal
from .covers import Covers
from .host import HERE, NO_BACKEND_FIX, Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence

    from skep_bwrap.spawn import Sandbox
    from skep_proxy import Proxy
    from skep_seatbelt import Sandbox as Held

    from .doorman import Doorman
else:
    import _signal as signal  # the module around it imports enum, which takes as long as ten of ours


CLOCK_STEP = 10**9
"""Nanoseconds; the coarse clock that stamps files is behind by less."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Outcome(Record):
    """What became of a worker; the fields of `report.Report`, and what only the command line needs."""

    exit_code: int
    limit: str | None
    layers: dict[str, bool | str]
    attestation: dict[str, bool | str | int]
    findings: list[Finding]
    egress: Egress
    exec_error: int | None
    evidence: str
    output_error: int | None = None
    lost: bool = False

    @property
    def timed_out(self) -> bool:
        return self.limit == "wall"

    @property
    def cut_short(self) -> bool:
        """Whether output of the worker is missing where it was to go."""
        return self.output_error is not None or self.limit == "file-size"


class Session:
    """Everything of one launch that outlives a call: the proxy's thread, our end of its connection, signal handlers."""

    def __init__(
        self,
        boundary: Boundary,
        on_event: Callable[[EgressEvent], None] | None,
        asked: Callable[[], None] | None = None,
    ) -> None:
        self.boundary = boundary
        self._asked = asked
        self._interrupted = False
        self.egress = Egress()
        self._on_event = on_event
        self._proxy: Proxy | None = None
        self._doorman: Doorman | None = None
        self._ours: _socket.socket | None = None
        self._theirs: _socket.socket | None = None
        self._previous: dict[int, object] = {}
        self._sandbox: Sandbox | Held | None = None
        self._wakes: tuple[int, ...] = ()
        self._previous_wake = -1

    def connection(self) -> _socket.socket:
        """The end for the sandbox of a connection on which the proxy will be listening once it was spawned."""
        self._ours, self._theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        return self._theirs

    def event(self, event: EgressEvent) -> None:
        """On the proxy's thread. A decision that cannot be recorded is refused: the exception does that."""
        if self._on_event is not None:
            self._on_event(event)
        self.egress.add(event)

    def spawned(self, sandbox: Sandbox, *, interactive: bool) -> None:
        """The guardian was forked before there was a second thread; now the proxy may start one. Called again when the
        launch is made again without a user namespace of the worker's own. Without `interactive` a worker that stops
        goes on at once.
        """
        first, self._sandbox = self._sandbox is None, sandbox
        if interactive:
            sandbox.on_stop = terminal.on_stop(sandbox)
        sandbox.wake = self.wake()
        if not first:
            return
        if self._ours is not None and self.boundary.rules.mode == "none":
            from .doorman import Doorman

            ours, self._ours = self._ours, None
            self._doorman = Doorman(ours, self._adopt)
        elif self._ours is not None:
            self._adopt(self._ours.detach())
        self.forward_to(sandbox)

    def _adopt(self, fd: int) -> None:
        """The proxy serves what comes by a connection."""
        import socket

        ours = socket.socket(fileno=fd)
        self.proxy().adopt(ours, self.boundary.rules)

    def proxy(self) -> Proxy:
        """The run's proxy, on its thread from now on. Raises BackendUnavailable for an upstream that cannot be used, if
        there is anything to reach through it.
        """
        from skep_proxy import Proxy, Upstream, UpstreamError

        try:
            upstream = None if self.boundary.rules.mode == "none" else Upstream.from_environ(os.environ)
        except UpstreamError as error:
            raise BackendUnavailable(str(error), fix="correct the variable, or unset it", check="upstream") from None
        self._proxy = Proxy(on_event=self.event, upstream=upstream)
        return self._proxy

    def forward_to(self, sandbox: Sandbox | Held) -> None:
        """The worker gets the signals we get, but those we were told to ignore."""
        self._sandbox = sandbox
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._forward)

    def wake(self) -> int:
        """A descriptor that tells of a signal, made once."""
        if not self._wakes:
            self._wakes = os.pipe()
            for fd in self._wakes:
                os.set_blocking(fd, False)
            self._previous_wake = signal.set_wakeup_fd(self._wakes[1], warn_on_full_buffer=False)
        return self._wakes[0]

    def _forward(self, number: int, frame: object) -> None:
        if self._sandbox is None:
            return
        if self._asked is not None and number in ENDING:
            if self._interrupted:
                self._sandbox.kill()
                return
            self._interrupted = True
            self._asked()
        self._sandbox.signal(number)

    def close(self) -> None:
        """No thread, descriptor or signal handler of the session is left; every event has been delivered."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._wakes:
            signal.set_wakeup_fd(self._previous_wake)
            for fd in self._wakes:
                os.close(fd)
        if self._doorman is not None:
            self._doorman.close()
        if self._proxy is not None:
            self._proxy.close()
        for sock in (self._ours, self._theirs):
            if sock is not None:
                sock.close()


def look_there_last(boundary: Boundary) -> None:
    """What this process imports from now on it does not find in a folder the worker may write (`PYTHONPATH`, or the
    current one with `-m`), unless it is nowhere else; skep's own packages are read-only there.
    """
    tree = Tree()
    sys.path.sort(key=lambda entry: boundary.access_to(tree.real(entry)) == Access.WRITE)


def look_afterwards() -> Callable[..., list[Finding]]:
    """`look_after`, imported while the sandbox is set up: that takes longer, and nothing of the worker is there yet."""
    from .findings import look_after

    return look_after


def unshare(boundary: Boundary) -> None:
    """What skep runs from is written by no other name (`ownfiles`). Raises BackendUnavailable."""
    from . import ownfiles

    tree = Tree()
    folders = [tree.real(entry) for entry in sys.path]
    ownfiles.unshare(folder for folder in folders if boundary.access_to(folder) != Access.WRITE)


def launch(
    boundary: Boundary,
    argv: Sequence[str],
    *,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
    bwrap: str | None = None,
    quarantine: str,
    on_event: Callable[[EgressEvent], None] | None = None,
    compiled: Callable[[Launch], None] | None = None,
    spawned: Callable[[Sandbox | Held], None] | None = None,
    started: Callable[[], None] | None = None,
    asked: Callable[[], None] | None = None,
    always_proxy: bool = False,
    host: Host = HERE,
    interactive: bool = True,
) -> Outcome:
    """Run `argv` in the boundary to its end; nothing of it is left on return. On the main thread, since it forwards
    signals.

    `always_proxy` starts the proxy for an empty allowlist too, so that what was asked for is on record. `quarantine`
    is a folder, made when needed, for files that would make git of the host run code. `on_event` is called on the
    proxy's thread before a decision takes effect; an exception from it denies. With `asked` the first of SIGTERM,
    SIGINT, SIGHUP and SIGQUIT is forwarded, after a call of it, and the second ends everything; without, each is
    forwarded. Without `interactive` the worker has no terminal.

    Raises BackendUnavailable when the boundary could not be applied: the worker never ran.
    """
    if host.backend is None:
        raise BackendUnavailable(host.missing, fix=NO_BACKEND_FIX, check="platform")
    look_there_last(boundary)
    begun = time.time_ns() - CLOCK_STEP
    session = Session(boundary, on_event, asked)
    proxied = boundary.rules.mode == "filtered" or (always_proxy and boundary.rules.mode == "none")
    if host.backend == "seatbelt":
        gc.enable()
        from .macos import launch_there

        return launch_there(
            session,
            argv,
            host=host,
            proxied=proxied,
            quarantine=quarantine,
            stdio=(stdin, stdout, stderr),
            compiled=compiled,
            spawned=spawned,
            started=started,
            begun=begun,
        )

    def on_spawn(sandbox: Sandbox) -> None:
        session.spawned(sandbox, interactive=interactive)
        look_afterwards()
        unshare(boundary)
        gc.freeze()  # what has been imported stays, and need not be looked at again
        gc.enable()
        if spawned is not None:
            spawned(sandbox)

    tty = terminal.opened() if interactive else None
    covers = Covers(boundary)
    try:
        outcome = run(
            boundary,
            argv,
            proxy=session.connection() if proxied else None,
            bwrap=bwrap,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            tty=tty,
            hand_tty=tty is not None and terminal.is_ours(tty) and os.isatty(stdin) and os.isatty(stdout),
            ignored=[number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN],
            compiled=compiled,
            spawned=on_spawn,
            started=started,
        )
        uncovered = covers.lost()
    finally:
        covers.close()
        session.close()
        if tty is not None:
            terminal.take_back(tty)
            os.close(tty)
    return Outcome(
        exit_code=outcome.exit_code,
        limit=outcome.limit,
        layers=outcome.layers,
        attestation=dict(outcome.attestation),
        findings=[*uncovered, *look_afterwards()(boundary, quarantine, since=begun)],
        egress=session.egress,
        exec_error=outcome.exec_error,
        evidence=outcome.evidence,
        output_error=outcome.output_error,
        lost=outcome.lost,
    )


__all__ = ["BackendUnavailable", "Outcome", "launch"]
