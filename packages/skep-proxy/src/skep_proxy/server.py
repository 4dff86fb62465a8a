"""The proxy as other threads see it: listeners, rules, an end. One engine thread does the work."""

from __future__ import annotations

import os
import socket
from threading import Event, Thread, current_thread
from types import TracebackType

from skep_policy import Rules
from skep_policy.value import Value, replace

from .auth import Token
from .engine import Engine, OnEvent, Stats, load_everything, tune
from .handoff import Handoff
from .limits import Limits
from .listener import Datagrams, Listener
from .resolver import Resolve, getaddrinfo
from .upstream import Upstream

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeVar

    Kind = Literal["proxy", "tcp", "dns"]
    T = TypeVar("T")
else:
    import _signal as signal  # the module around it makes enumerations of all its numbers

BACKLOG = 4096
"""Connections the kernel keeps for us; it lowers this to net.core.somaxconn."""

CLOSED = "this proxy is closed"


class Opened(Value):
    """A socket that listens and is not served yet. `path` is that of a Unix socket, removed with its listener: path,
    device, inode.
    """

    sock: socket.socket
    rules: Rules
    path: tuple[str, int, int] | None = None

    def close(self) -> None:
        self.sock.close()
        if self.path is not None:
            remove_socket(*self.path)


class Proxy:
    """A filtering egress proxy on a thread of its own.

    `on_event` is called on that thread for every decision before it takes effect, and when an allowed connection
    ends; an exception from it refuses the connection. `upstream` is the operator's own proxy,
    `resolve` replaces the system's resolver. Every method may be
    called from any thread. As a context manager it is closed at the end.
    """

    def __init__(
        self,
        *,
        on_event: OnEvent | None = None,
        upstream: Upstream | None = None,
        limits: Limits | None = None,
        resolve: Resolve = getaddrinfo,
    ) -> None:
        self._engine = Engine(on_event=on_event, limits=limits or Limits(), resolve=resolve, upstream=upstream)
        self._listeners: list[Listener | Datagrams] = []
        self._closed = False
        self._thread = Thread(target=self._run, name="skep-proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen_tcp(self, host: str, port: int, rules: Rules, *, token: str | None = None) -> tuple[str, int]:
        """Serve on a TCP address; port 0 picks one. Returns the address. Raises OSError.

        With a `token` of 16 to 255 bytes, only clients that show it are served (see `auth`); ValueError for another.
        """
        self._still_open()
        admits = None if token is None else Token(token)
        opened = open_tcp(host, port, rules)
        self._listen(opened, token=admits)
        host, port = opened.sock.getsockname()[:2]
        return host, port

    def listen_unix(self, path: str | os.PathLike[str], rules: Rules, *, mode: int = 0o600) -> None:
        """Serve on a Unix socket that did not exist before; it is removed at the end. Raises OSError.

        Who may connect is decided by `mode` from the first moment. Listeners may be handed over on it (see `handoff`).
        """
        self._still_open()
        self._listen(open_unix(os.fspath(path), mode, rules))

    def listen_on(self, sock: socket.socket, rules: Rules, kind: Kind = "proxy") -> None:
        """Serve on a socket made elsewhere: a listening one, or for kind "dns" a bound UDP one. The proxy owns it
        from here on: when it cannot be served, it is closed.
        """
        try:
            self._still_open()
            if kind == "dns":
                sock.setblocking(False)
                self._on_engine(lambda: self._add(Datagrams(self._engine, self._engine.scope(rules), sock)))
            else:
                self._listen(open_on(sock, rules), transparent=kind == "tcp")
        except BaseException:
            sock.close()
            raise

    def connect(self, rules: Rules) -> socket.socket:
        """One end of a connection on which a sandbox hands over listeners (see `handoff`); they carry `rules` and
        live until every copy of this end is closed.
        """
        self._still_open()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.adopt(ours, rules)
        except BaseException:
            theirs.close()
            raise
        return theirs

    def adopt(self, sock: socket.socket, rules: Rules) -> None:
        """As `connect`, with the proxy's end of a pair made elsewhere: for a caller that starts its sandbox before the
        proxy's thread. The proxy owns it from here on: when it is closed already, so is the socket.
        """

        def start() -> None:
            Handoff(self._engine, self._engine.scope(rules), sock, trusted=True).start()

        sock.setblocking(False)
        if self._closed or not self._engine.loop.submit(start):
            sock.close()
            raise RuntimeError(CLOSED)

    def apply(
        self,
        *,
        opened: Sequence[Opened] = (),
        replaced: Sequence[tuple[Rules, Rules]] = (),
        dropped: Sequence[Rules] = (),
    ) -> None:
        """All of it from one moment on: new listeners are served, what carries the first of a pair of rules decides by
        the second, listeners that carry exactly one of `dropped` are closed and nothing is allowed by them any more.
        Connections that are open stay. When a listener cannot be served, nothing has changed but that all of `opened`
        are closed. Raises OSError.
        """

        def change() -> None:
            served: list[Listener | Datagrams] = []
            try:
                for new in opened:
                    served.append(self._serve(new))
            except BaseException:
                self._close_listeners(served)
                raise
            for old, new in replaced:
                self._replace(old, new)
            for old in dropped:
                self._drop(old)
                self._replace(old, Rules.build())  # kept connections may not ask for more

        try:
            self._on_engine(change)
        except BaseException:
            for one in opened:
                one.close()
            raise

    def close_listeners(self, rules: Rules) -> int:
        """Listeners that carry exactly this object are closed; connections that came by them go on. Returns how
        many.
        """
        return self._on_engine(lambda: self._drop(rules))

    def replace_rules(self, old: Rules, new: Rules) -> int:
        """Everything that carries `old` decides by `new` from here on; open connections stay. Returns how many scopes
        that were.
        """
        return self._on_engine(lambda: self._replace(old, new))

    def stats(self) -> Stats:
        """A copy of the counters."""
        stats = replace(self._engine.stats, faults=self._engine.loop.faults)
        stats.denied = dict(stats.denied)
        stats.failures = dict(stats.failures)
        return stats

    def stop_accepting(self) -> None:
        """Listeners are closed, those that were handed over too; connections that are open go on. After the end of the
        proxy there is nothing to do.
        """

        def stop() -> None:
            self._close_listeners(list(self._listeners))
            for handoff in list(self._engine.handoffs):
                handoff.stop_accepting()

        if not self._closed:
            self._on_engine(stop)

    def drain(self, seconds: float) -> bool:
        """Stop accepting, and wait for the open connections to end. False when some are still open after that time."""
        self.stop_accepting()
        done = Event()

        def look() -> None:
            if self._engine.stats.connections == 0:
                done.set()
            else:
                self._engine.retries.add(done, look)

        return not self._engine.loop.submit(look) or done.wait(seconds)

    def close(self) -> None:
        """No listener, connection, descriptor or thread of the proxy is left. Open connections are reset.
        Idempotent.
        """
        self._closed = True
        self._engine.loop.stop()
        if current_thread() is not self._thread:
            self._thread.join()

    def _listen(self, opened: Opened, *, token: Token | None = None, transparent: bool = False) -> None:
        try:
            self._on_engine(lambda: self._serve(opened, token=token, transparent=transparent))
        except BaseException:
            opened.close()
            raise

    def _still_open(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)

    def _on_engine(self, callback: Callable[[], T]) -> T:
        """What `callback` returns or raises, on the engine's thread. Raises RuntimeError when that has ended."""
        if current_thread() is self._thread:
            return callback()
        results: list[T] = []
        errors: list[Exception] = []
        done = Event()

        def run() -> None:
            try:
                results.append(callback())
            except Exception as error:  # whatever it is belongs to the caller
                errors.append(error)
            done.set()

        if not self._engine.loop.submit(run):
            raise RuntimeError(CLOSED)
        done.wait()
        if errors:
            raise errors[0]
        return results[0]

    # --- on the engine's thread
    # ----------------------------------------------------------------------------------------

    def _serve(self, opened: Opened, *, token: Token | None = None, transparent: bool = False) -> Listener:
        scope = self._engine.scope(opened.rules, token=token)
        listener = Listener(self._engine, scope, opened.sock, transparent=transparent)
        listener.path = opened.path
        self._add(listener)
        return listener

    def _add(self, listener: Listener | Datagrams) -> None:
        self._listeners.append(listener)
        try:
            self._know_own_ports()
            listener.start()
        except BaseException:
            self._close_listeners([listener])
            raise

    def _know_own_ports(self) -> None:
        """The proxy does not dial itself."""
        served = [listener.sock for listener in self._listeners if isinstance(listener, Listener)]
        self._engine.dialer.own_ports = {sock.getsockname()[1] for sock in served if sock.family != socket.AF_UNIX}

    def _drop(self, rules: Rules) -> int:
        found = [listener for listener in self._listeners if listener.scope.rules is rules]
        self._close_listeners(found)
        return len(found)

    def _replace(self, old: Rules, new: Rules) -> int:
        found = [scope for scope in self._engine.scopes if scope.rules is old]
        for scope in found:
            scope.rules = new
        return len(found)

    def _run(self) -> None:
        # Signals belong to the main thread; SIGPIPE of a splice to a closed socket must not end a process that
        # restored it.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        # Soon after the first client could come, which does not wait for what it may never need.
        self._engine.retries.add(self, self._load)
        try:
            self._engine.loop.run()
        finally:
            self._engine.loop.finish()
            self._close_listeners(list(self._listeners))
            for handoff in list(self._engine.handoffs):
                handoff.abort()
            for scope in list(self._engine.scopes):
                scope.abort()
            self._engine.close()

    def _load(self) -> None:
        try:
            load_everything()
        except (OSError, ImportError):
            self._engine.retries.add(self, self._load)  # no descriptor left: later

    def _close_listeners(self, listeners: list[Listener | Datagrams]) -> None:
        for listener in listeners:
            self._listeners.remove(listener)
            self._know_own_ports()
            if listener.path is not None:
                remove_socket(*listener.path)
            listener.abort()
            for handoff in list(self._engine.handoffs):
                if handoff.scope.parent is listener.scope:
                    handoff.stop_accepting()
            if not listener.scope.live:
                self._engine.scopes.discard(listener.scope)


def open_tcp(host: str, port: int, rules: Rules) -> Opened:
    """A TCP address that is listened on. Raises OSError."""
    return open_on(bind_tcp(host, port), rules)


def open_unix(path: str, mode: int, rules: Rules) -> Opened:
    """A Unix socket that did not exist and is listened on. Raises OSError."""
    sock, made = bind_unix(path, mode)
    return open_on(sock, rules, made)


def open_on(sock: socket.socket, rules: Rules, path: tuple[str, int, int] | None = None) -> Opened:
    """A bound socket that is listened on from here on. Raises OSError, and it is closed."""
    opened = Opened(sock, rules, path)
    try:
        sock.listen(BACKLOG)
        sock.setblocking(False)
        tune(sock)
    except BaseException:
        opened.close()
        raise
    return opened


def bind_tcp(host: str, port: int) -> socket.socket:
    """A socket bound to a TCP address. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def bind_unix(path: str, mode: int) -> tuple[socket.socket, tuple[str, int, int]]:
    """A socket bound to a path that did not exist, and what `remove_socket` wants to know. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), mode & ~0o111)  # Linux: bind makes the file with the socket's mode, so there is no gap
        sock.bind(path)
        os.chmod(path, mode)
        made = os.stat(path)
    except BaseException:
        sock.close()
        raise
    return sock, (path, made.st_dev, made.st_ino)


def remove_socket(path: str, device: int, inode: int) -> None:
    """The socket file is gone, unless the path holds something else by now."""
    try:
        found = os.lstat(path)
        if (found.st_dev, found.st_ino) == (device, inode):
            os.unlink(path)
    except OSError:
        pass
