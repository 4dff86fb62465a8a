"""One serving process: listeners as configured, signals, reload, metrics, and a graceful end.

SIGHUP            the file is read again: rules are replaced, listeners come and go, open connections stay; a file that
                  cannot be read or used changes nothing
SIGTERM, SIGINT   nothing new is accepted, open connections have `drain` seconds; a second one ends them at once
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

import anyio
import msgspec
from skep_policy import Decision, EgressEvent, PolicyError, Rules, replace

from . import metrics, systemd
from .config import Place, Settings, parse_file
from .engine import Stats
from .server import Opened, Proxy, open_on, open_tcp, open_unix
from .serving import drained
from .upstream import Upstream

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Blocked from the start of the process until `Daemon.run` receives them, so that none that comes early is lost or
kills.
"""

METRICS_PATIENCE = 5.0
"""Seconds for a scraper to send its request, and again to take the page. They are served one after the other."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `file` is read again on SIGHUP; `flags` are the listeners that flags name."""

    file: str | None = None
    flags: tuple[tuple[Place, Rules], ...] = ()
    json_log: str | None = None
    metrics: Place | None = None
    drain: float = 30.0
    workers: int = 1
    quiet: bool = False


def read_settings(options: Options) -> Settings:
    """The file and the flags together. Raises PolicyError."""
    if options.file is None:
        return Settings(options.flags)
    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8; save the file as UTF-8"
        raise PolicyError(f"cannot be read: {reason}", source=options.file) from None
    settings = parse_file(text, source=options.file)
    return msgspec.structs.replace(settings, listeners=(*settings.listeners, *options.flags))


class Log:
    """Where events go. A JSON log that cannot be written to raises, and so denies; the text log is a convenience."""

    def __init__(self, path: str | None, *, quiet: bool) -> None:
        self._path = path
        self._quiet = quiet
        self._torn = False
        """The file ends in the middle of a line that could not be written whole; the next one begins with its own."""
        self._fd = -1
        self.reopen()

    def reopen(self) -> None:
        """For a log that was rotated. Raises OSError, and the old file stays in use."""
        if self._path is None:
            return
        fd = os.dup(1) if self._path == "-" else os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        old, self._fd = self._fd, fd
        if old >= 0:
            os.close(old)

    def __call__(self, event: EgressEvent) -> None:
        if self._path is not None:
            kind = "decision" if isinstance(event, Decision) else "closed"
            line = msgspec.json.encode({"type": kind, **msgspec.to_builtins(event)}) + b"\n"
            line = b"\n" + line if self._torn else line
            written = 0
            try:
                while written < len(line):
                    written += os.write(self._fd, line[written:])
            finally:
                self._torn = self._torn if not written else written < len(line)
        elif not self._quiet and isinstance(event, Decision):
            verdict = event.verdict
            word = "allow" if verdict.allow else f"deny ({verdict.reason})"
            rule = f" by {verdict.rule!r}" if verdict.rule else ""
            say(f"{word} {event.via} {event.host!r}:{event.port}{rule}")


def say(text: str) -> None:
    """One line on stderr, if anyone reads it."""
    try:
        os.write(2, f"skep-proxy: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


def refused(place: Place, error: OSError) -> OSError:
    """What is told of a place that cannot be listened on, with the remedy where one is known."""
    left = place.kind == "unix" and Path(place.path).is_socket()
    remedies = {
        ("unix", errno.EADDRINUSE): f"; `rm {place.path}` if no proxy is behind it" if left else "; it is no socket",
        ("unix", errno.ENOENT): "; make its folder first",
        ("tcp", errno.EADDRINUSE): "; another --listen, or end what listens there",
        ("tcp", errno.EACCES): "; ports below 1024 are root's",
        ("tcp", errno.EADDRNOTAVAIL): "; it is no address of this machine",
    }
    return OSError(
        f"cannot listen on {place}: {error.strerror or error}{remedies.get((place.kind, error.errno or 0), '')}"
    )


class Daemon:
    """One process. `sockets` are listening sockets made before, by place; other places are opened here."""

    def __init__(
        self,
        options: Options,
        settings: Settings,
        *,
        environ: Mapping[str, str],
        upstream: Upstream,
        sockets: Mapping[Place, socket.socket],
        publish: Callable[[Stats], Stats] = lambda stats: stats,
    ) -> None:
        self._options = options
        self._settings = settings
        self._environ = environ
        self._sockets = dict(sockets)
        self._publish = publish
        self._log = Log(options.json_log, quiet=options.quiet)
        heard = options.json_log is not None or not options.quiet
        self._proxy = Proxy(on_event=self._log if heard else None, upstream=upstream, limits=settings.limits)
        self._rules: dict[Place, Rules] = {}

    def open(self) -> None:
        """Every listener is open. Raises OSError, naming the place, when one cannot be."""
        self._apply(self._settings)

    def _open(self, place: Place, rules: Rules) -> Opened:
        """Raises OSError, naming the place."""
        try:
            sock = self._sockets.get(place)
            if sock is not None:
                return open_on(sock, rules)
            match place.kind:
                case "tcp":
                    return open_tcp(place.host, place.port, rules)
                case "unix":
                    return open_unix(place.path, place.mode, rules)
                case "activated":
                    raise OSError(f"no socket of the name {place.path!r} was passed by systemd")
        except OSError as error:
            raise refused(place, error) from error

    async def run(self, parent: int | None = None, metrics_socket: socket.socket | None = None) -> None:
        """Serve until told to stop, or until the other end of the pipe `parent` is closed."""
        if parent is not None:
            Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
        if metrics_socket is not None:
            Thread(target=self._serve_metrics, args=(metrics_socket,), daemon=True).start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_publishing)
            with anyio.open_signal_receiver(*SIGNALS) as signals:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                systemd.notify(self._environ, "READY=1", f"STATUS=serving {len(self._rules)} listeners")
                async for number in signals:
                    if number == signal.SIGHUP:
                        self._reload()
                        continue
                    break
                systemd.notify(self._environ, "STOPPING=1")
                async with anyio.create_task_group() as ending:
                    ending.start_soon(self._stop_at_second_signal, signals, ending.cancel_scope)
                    await drained(self._proxy, self._options.drain)
                    ending.cancel_scope.cancel()
            tasks.cancel_scope.cancel()

    def close(self) -> None:
        self._proxy.close()

    async def _stop_at_second_signal(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        async for number in signals:
            if number != signal.SIGHUP:
                scope.cancel()

    def _reload(self) -> None:
        now = f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
        systemd.notify(self._environ, "RELOADING=1", now)
        try:
            settings = read_settings(self._options)
            self._apply(settings, self._log.reopen)
            say(f"reloaded, {len(self._rules)} listeners")
        except (PolicyError, OSError) as error:
            say(f"not reloaded: {error}")
        systemd.notify(self._environ, "READY=1")

    def _apply(self, settings: Settings, last: Callable[[], None] = lambda: None) -> None:
        """All of the settings are in force from one moment on, or, when a listener cannot be opened or `last` fails,
        nothing has changed. Raises OSError.
        """
        # Objects of their own, so that reloading one listener is about that one.
        wanted = {place: replace(rules) for place, rules in settings.listeners}
        here = {place.where(): place for place in self._rules}
        kept = {place: here[place.where()] for place in wanted if place.where() in here}
        new = {place: rules for place, rules in wanted.items() if place not in kept}
        if new and self._rules and self._options.workers > 1:
            raise OSError(f"{next(iter(new))} is new: with --workers, listeners are opened at the start only")
        other_modes = [(place, old) for place, old in kept.items() if place.mode != old.mode]
        opened: list[Opened] = []
        try:
            for place, rules in new.items():
                opened.append(self._open(place, rules))
            for place, _ in other_modes:
                _set_mode(place)
            last()
            self._proxy.apply(
                opened=opened,
                replaced=[(self._rules[old], wanted[place]) for place, old in kept.items()],
                dropped=[old for place, old in self._rules.items() if place not in kept.values()],
            )
        except OSError:
            for _, old in other_modes:
                with suppress(OSError):
                    _set_mode(old)
            for one in opened:
                if one.sock not in self._sockets.values():
                    one.close()
            raise
        self._rules = wanted
        self._sockets = {place: sock for place, sock in self._sockets.items() if place not in wanted}
        for place, one in zip(new, opened, strict=True):
            say(f"listening on {named(place, one)}")
            if not wanted[place].allow:
                say("no rule allows anything there: --allow HOST, or `allow` in the file")
        if settings.limits != self._settings.limits:
            say("limits are read at the start only")

    async def _keep_publishing(self) -> None:
        while True:
            self._publish(self._proxy.stats())
            await anyio.sleep(1)

    def _serve_metrics(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
                with sock:
                    self._answer_scraper(sock, time.monotonic() + METRICS_PATIENCE)
            except OSError:
                time.sleep(0.05)  # a scraper that went away, or no descriptor left

    def _answer_scraper(self, sock: socket.socket, deadline: float) -> None:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < 8192:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            data = sock.recv(4096)
            if not data:
                return
            request += data
        page = metrics.render(self._publish(self._proxy.stats())).encode()
        found = request.startswith((b"GET /metrics ", b"GET / "))
        status, body = ("200 OK", page) if found else ("404 Not Found", b"")
        head = f"HTTP/1.1 {status}\r\nContent-Type: {metrics.CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        sock.settimeout(METRICS_PATIENCE)
        sock.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)


def named(place: Place, opened: Opened) -> Place:
    """The place with the port that the system picked."""
    return place if place.kind != "tcp" else Place("tcp", *opened.sock.getsockname()[:2])


def _set_mode(place: Place) -> None:
    """A Unix socket that is listened on has its mode. Raises OSError."""
    if place.kind == "unix":
        try:
            os.chmod(place.path, place.mode)
        except OSError as error:
            raise OSError(f"cannot change the mode of {place}: {error.strerror}") from error


def _end_with_parent(pipe: int) -> None:
    """A worker whose parent is gone ends as if it had been told to."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def fail(text: str) -> int:
    """Exit code of a server that could not start."""
    say(text)
    return 1
