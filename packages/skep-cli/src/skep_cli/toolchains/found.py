"""What a tool's configuration says, and what of it becomes policy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

import msgspec
from skep_policy.errors import MalformedHost, PolicyError
from skep_policy.hosts import canonical_host, is_address

PORTS = {"http": 80, "https": 443}

_CREDENTIALS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_PREFIXES = re.compile(r"^(?:sparse|registry|git)\+", re.IGNORECASE)


class Config(msgspec.Struct, frozen=True):
    """Configuration that no variable can hold: a file for the worker to read, and the variable that leads to it."""

    variable: str
    name: str
    text: str


class Found(msgspec.Struct, frozen=True):
    """The answer of one tool. `registries` are the URLs it would ask, `env` tells the tool inside the same by variable.

    `files` are those the values of `env` stand in and the worker cannot read: whoever grants one of them wants the tool
    to read it itself. `unless_granted` is why the tool is of no use inside without one of them.
    """

    registries: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()
    unless_granted: str = ""
    config: Config | None = None


def without_credentials(text: str) -> str:
    """The text with user names and passwords taken out of its URLs."""
    return _CREDENTIALS.sub(r"\1", text)


def destination(url: str, *, source: str) -> tuple[str, int] | None:
    """Host and port of a registry's URL; None for what needs no network, such as a folder. Raises PolicyError.

    Only the one port: a registry is asked at its own, and nothing else of that host is meant.
    """
    if "://" not in url:
        return None
    try:
        parts = urlsplit(_PREFIXES.sub("", url))
        port = PORTS.get(parts.scheme)
        if port is None:
            return None
        return canonical_host(parts.hostname or ""), parts.port or port
    except (MalformedHost, ValueError) as error:
        shown = without_credentials(url)
        raise PolicyError(f"a registry that is no URL of a host: {shown!r}: {error}", source=source) from None


def rules(urls: Iterable[str], *, source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The `allow` and the `private` rules for registries. Raises PolicyError.

    The names come from the operator's own configuration, so they may lead to private addresses, as a company's mirror
    does: the tool outside goes there too.
    """
    allow: dict[str, None] = {}
    private: dict[str, None] = {}
    for url in urls:
        target = destination(url, source=source)
        if target is None:
            continue
        host, port = target
        allow[f"[{host}]:{port}" if ":" in host else f"{host}:{port}"] = None
        if not is_address(host) and host != "localhost" and not host.endswith(".localhost"):
            private[host] = None
    return tuple(allow), tuple(private)
