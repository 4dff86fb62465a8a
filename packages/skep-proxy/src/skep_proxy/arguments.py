"""The command line of `skep-proxy`, and the help that goes with it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from .config import DEFAULT_ADDRESS

USAGE = 2

EXAMPLES = """\
rules:
  api.example.com        that host, at ports 80 and 443; nothing that is not named is reached
  github.com:22          that port only; example.com:* is any port
  *.example.com          every name below example.com, at any depth, and not example.com itself
  10.1.0.0/16:443        requests that name an address; never a name that resolves to one
  localhost:5432         a service of this machine
  *                      every name, but nothing that resolves to a private address

examples:
  skep-proxy serve --allow '*.example.com' --allow github.com:22
      on 127.0.0.1:3128; then  HTTPS_PROXY=http://127.0.0.1:3128 curl https://api.example.com/
  skep-proxy serve --allow example.com --unix /run/egress/proxy.sock
      for containers without a network: mount the socket, and run skep-netshim inside
  skep-proxy serve --config /etc/skep-proxy.toml --json-log events.jsonl --metrics 127.0.0.1:9100
      several listeners, each with rules of its own; kill -HUP reads the file again

A denial is 403 with two lines: what was denied and why, and the flag that would allow it.
"""


if TYPE_CHECKING:
    Group = argparse._ArgumentGroup  # pyright: ignore[reportPrivateUsage]


class _Version(argparse.Action):
    """Looks the version up when it is asked for, and not at every start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"skep-proxy {version('skep-proxy')}\n")
        parser.exit(0)


class _Parser(argparse.ArgumentParser):
    """Tells an error in one line, with the command whose help has the answer."""

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: command"):
            message = "say `skep-proxy serve`, with what may be reached: --allow HOST"
        self.exit(USAGE, f"skep-proxy: {message}; see `{self.prog} --help`\n")


def parser() -> argparse.ArgumentParser:
    main = _Parser(
        prog="skep-proxy", description="A filtering egress proxy: HTTP CONNECT, plain HTTP and SOCKS5 on one port."
    )
    main.add_argument("--version", action=_Version, nargs=0, help="say which version this is, and exit")
    commands = main.add_subparsers(dest="command", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve until SIGTERM; `skep-proxy serve --help` explains rules and shows examples",
        description="Serve until SIGTERM or SIGINT. What no rule names is denied.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_rules(serve.add_argument_group("rules of the listeners that flags name (see below)"))
    _add_places(serve.add_argument_group("where to listen"))
    _add_ways(serve.add_argument_group("how"))
    return main


def _add_rules(group: Group) -> None:
    group.add_argument(
        "--allow", action="append", default=[], metavar="RULE", help="may be reached; may be given again"
    )
    group.add_argument("--deny", action="append", default=[], metavar="RULE", help="may not, whatever is allowed")
    group.add_argument(
        "--private", action="append", default=[], metavar="NAME", help="may resolve to private addresses"
    )
    group.add_argument(
        "--sni",
        choices=("match", "off"),
        default="match",
        help="match (default): a TLS client hello must name an allowed host",
    )
    group.add_argument("--max-bytes-out", metavar="SIZE", help="most that may be sent to one host, like 50MiB")


def _add_places(group: Group) -> None:
    group.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDR",
        help=f"TCP; {DEFAULT_ADDRESS} if nothing is said, [::1]:3128, :0",
    )
    group.add_argument(
        "--unix", action="append", default=[], metavar="PATH", help="a Unix socket; takes hand-overs of containers too"
    )
    group.add_argument("--mode", default="0600", help="permissions of the Unix sockets, in octal (default: 0600)")
    group.add_argument("--config", metavar="FILE", help="TOML with [[listener]] tables and [limits]; see the README")


def _add_ways(group: Group) -> None:
    group.add_argument(
        "--upstream",
        metavar="URL",
        default="env",
        help="the way out: env (default) obeys HTTPS_PROXY, NO_PROXY and kin; none; http://HOST:PORT; "
        "socks5h://HOST:PORT",
    )
    group.add_argument(
        "--json-log",
        metavar="PATH",
        help="a JSON line per decision and per end, - for stdout; what cannot be written down is denied",
    )
    group.add_argument("--metrics", metavar="ADDR", help="Prometheus metrics over HTTP at this address")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="processes on the same sockets (default: 1)")
    group.add_argument("--drain", default="30s", metavar="TIME", help="for open connections after SIGTERM (30s)")
    group.add_argument("--quiet", action="store_true", help="no line per decision on stderr")
