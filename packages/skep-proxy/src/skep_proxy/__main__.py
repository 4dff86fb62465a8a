"""The command `skep-proxy`."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial

import anyio
from skep_policy import PolicyError, parse_duration

from .arguments import USAGE, parser
from .config import DEFAULT_ADDRESS, Place, Settings, flag_listeners, listened
from .daemon import SIGNALS, Daemon, Options, fail, read_settings, refused, say
from .engine import Stats
from .server import BACKLOG, bind_tcp, bind_unix, remove_socket
from .systemd import activated, notify
from .upstream import Upstream, UpstreamError, parse_hop
from .workers import Board, Crew

MAX_DESCRIPTORS = 1 << 20
"""Where the hard limit is none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after a graceful end, 1 when it could not serve, 2 for what is wrong with arguments or
    configuration.
    """
    arguments = parser().parse_args(argv)
    passed = activated(os.environ, pid=os.getpid())
    try:
        options = _options(arguments, [name for name, found in passed.items() for _ in found])
        settings = read_settings(options)
        upstream = _upstream(arguments.upstream)
        _check(options, settings)
    except (PolicyError, UpstreamError) as error:
        fail(str(error))
        return USAGE
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _raise_descriptor_limit()
    try:
        return _serve(options, settings, upstream, passed)
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))


def _raise_descriptor_limit() -> None:
    """As many descriptors as the system lets this process have: a tunnel takes two, and shells start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _options(arguments: argparse.Namespace, passed: Sequence[str]) -> Options:
    listen: list[str] = arguments.listen
    if not listen and not arguments.unix and arguments.config is None and not passed:
        listen = [DEFAULT_ADDRESS]
    flags = flag_listeners(
        listen,
        arguments.unix,
        mode=arguments.mode,
        allow=arguments.allow,
        deny=arguments.deny,
        private=arguments.private,
        sni=arguments.sni,
        max_bytes_out=arguments.max_bytes_out,
        activated=passed if arguments.config is None else (),
    )
    if not flags and (arguments.allow or arguments.deny):
        raise PolicyError("--allow and --deny are for the listeners of flags; add --listen or --unix")
    if arguments.workers < 1:
        raise PolicyError(f"must be at least 1, not {arguments.workers}", source="--workers")
    metrics = None
    if arguments.metrics is not None:
        metrics = listened(arguments.metrics, "--metrics")
    try:
        drain = parse_duration(arguments.drain)
    except PolicyError as error:
        raise error.at(source="--drain") from None
    return Options(
        file=arguments.config,
        flags=flags,
        json_log=arguments.json_log,
        metrics=metrics,
        drain=drain,
        workers=arguments.workers,
        quiet=arguments.quiet,
    )


def _check(options: Options, settings: Settings) -> None:
    if not settings.listeners:
        raise PolicyError("nothing to listen on: add a [[listener]] table, or --listen or --unix", source=options.file)
    if options.workers > 1 and any(rules.max_bytes_out is not None for _, rules in settings.listeners):
        raise PolicyError("max-bytes-out is counted per process: it needs --workers 1")


def _upstream(text: str) -> Upstream:
    if text == "env":
        return Upstream.from_environ(os.environ)
    if text == "none":
        return Upstream()
    hop = parse_hop(text, source="--upstream")
    return Upstream(hop, hop)


def _serve(options: Options, settings: Settings, upstream: Upstream, passed: dict[str, list[socket.socket]]) -> int:
    sockets = _take_activated(settings, passed)
    metrics = None
    if options.metrics is not None:
        try:
            metrics = bind_tcp(options.metrics.host, options.metrics.port)
        except OSError as error:
            raise refused(options.metrics, error) from error
        metrics.listen(BACKLOG)
    if options.workers == 1:
        return _run(Daemon(options, settings, environ=os.environ, upstream=upstream, sockets=sockets), None, metrics)
    paths: list[tuple[str, int, int]] = []
    for place, _ in settings.listeners:
        try:
            if place.kind == "tcp":
                sockets[place] = bind_tcp(place.host, place.port)
            elif place.kind == "unix":
                sockets[place], made = bind_unix(place.path, place.mode)
                paths.append(made)
            elif place not in sockets:
                raise OSError("no such socket was passed by systemd")
            sockets[place].listen(BACKLOG)
        except OSError as error:
            for path in paths:
                remove_socket(*path)
            raise refused(place, error) from error
    board = Board(options.workers)

    def work(number: int, parent: int) -> int:
        def publish(stats: Stats) -> Stats:
            return board.publish(number, stats)

        try:
            daemon = Daemon(options, settings, environ={}, upstream=upstream, sockets=sockets, publish=publish)
            return _run(daemon, parent, metrics)
        except OSError as error:
            return fail(f"a worker cannot serve: {error}")

    try:
        notify(os.environ, "READY=1")
        return Crew(options.workers, work, may_reload=partial(_may_reload, options)).run()
    finally:
        for path in paths:
            remove_socket(*path)


def _may_reload(options: Options) -> bool:
    try:
        _check(options, read_settings(options))
    except PolicyError as error:
        say(f"not reloaded: {error}")
        return False
    return True


def _take_activated(settings: Settings, passed: dict[str, list[socket.socket]]) -> dict[Place, socket.socket]:
    sockets: dict[Place, socket.socket] = {}
    for place, _ in settings.listeners:
        if place.kind == "activated" and passed.get(place.path):
            sockets[place] = passed[place.path].pop(0)
    return sockets


def _run(daemon: Daemon, parent: int | None, metrics: socket.socket | None) -> int:
    try:
        daemon.open()
        anyio.run(daemon.run, parent, metrics)
    finally:
        daemon.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
