"""What `skep-proxy serve` serves: a TOML file, flags, or both, as values. Pure.

    [[listener]]
    tcp = "127.0.0.1:3128"            # or  unix = "/run/skep/agents.sock"  (mode = "0660"),  or  activated = "NAME"
    allow = ["*.example.com"]
    deny = ["evil.example.com"]
    private = []
    sni = "match"
    max-bytes-out = "50MiB"

    [limits]                          # see `Limits`
    connections = 10000

Unknown keys are errors. Each listener has its own rules; flags make one more set of rules for the listeners they name.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

import msgspec
from skep_policy import MalformedHost, PolicyError, Rule, Rules, parse_rule, parse_size, parse_target

from .limits import Limits

if TYPE_CHECKING:
    from skep_policy.rule import Use

DEFAULT_ADDRESS = "127.0.0.1:3128"


class ListenerTable(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """A `[[listener]]`. Exactly one of `tcp`, `unix` and `activated`."""

    tcp: str | None = None
    unix: str | None = None
    mode: str = "0600"
    activated: str | None = None
    """Name of a socket that systemd hands over (`FileDescriptorName=`)."""
    allow: list[str] = []
    deny: list[str] = []
    private: list[str] = []
    sni: Literal["match", "off"] = "match"
    max_bytes_out: str | None = None


class LimitsTable(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True, kw_only=True):
    """The fields of `Limits`, which says what they are."""

    connections: int = Limits().connections
    connections_each: int = Limits().connections_each
    head: int = Limits().head
    handshake: float = Limits().handshake
    dial: float = Limits().dial
    keep_alive: float = Limits().keep_alive
    linger: float = Limits().linger


class File(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The configuration file."""

    listener: list[ListenerTable] = []
    limits: LimitsTable = LimitsTable()


class Place(msgspec.Struct, frozen=True):
    """Where one listener listens: `kind` is tcp (host and port), unix (path and mode) or activated (its name in
    `path`, and in `port` what tells several of a name apart).
    """

    kind: Literal["tcp", "unix", "activated"]
    host: str = ""
    port: int = 0
    path: str = ""
    mode: int = 0o600

    def where(self) -> Place:
        """The same whatever its mode is, which can be changed while it is listened on."""
        return msgspec.structs.replace(self, mode=0)

    def __str__(self) -> str:
        match self.kind:
            case "tcp":
                return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
            case "unix":
                return self.path
            case "activated":
                return f"activated {self.path!r}"


class Settings(msgspec.Struct, frozen=True):
    """Listeners in the order written, each with its rules."""

    listeners: tuple[tuple[Place, Rules], ...]
    limits: Limits = Limits()


def parse_file(text: str, *, source: str) -> Settings:
    """The settings of a file. Raises PolicyError that names the file and, where it can be known, the key."""
    try:
        file = msgspec.toml.decode(text, type=File)
    except msgspec.DecodeError as error:
        raise PolicyError(_decoding(str(error)), source=source) from None
    listeners: list[tuple[Place, Rules]] = []
    for number, table in enumerate(file.listener):
        key = f"listener[{number}]"
        listeners.append((_place(table, source, key), _rules(table, source, key)))
    for number, (place, _) in enumerate(listeners):
        if place.where() in [other.where() for other, _ in listeners[:number]]:
            raise PolicyError(f"{place} is listed twice", source=source, key=f"listener[{number}]")
    return Settings(tuple(listeners), Limits(**msgspec.structs.asdict(file.limits)))


def _decoding(said: str) -> str:
    """What a decoder says, by the words of the file."""
    said, _, place = said.replace("`", "").partition(" - at $.")
    name = said.partition("unknown field ")[2]
    if not name:
        return f"{place}: {said}" if place else said
    table = ListenerTable if place.startswith("listener") else LimitsTable if place.startswith("limits") else File
    known = table.__struct_encode_fields__
    near = get_close_matches(name, known, n=1)
    remedy = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}"
    return f"{place}{place and '.'}{name}: unknown key; {remedy}"


def flag_listeners(
    listen: Sequence[str],
    unix: Sequence[str],
    *,
    mode: str = "0600",
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    private: Sequence[str] = (),
    sni: Literal["match", "off"] = "match",
    max_bytes_out: str | None = None,
    activated: Sequence[str] = (),
) -> tuple[tuple[Place, Rules], ...]:
    """The listeners that flags name, all with the same rules; `activated` are the names of sockets systemd passed,
    one per socket. Raises PolicyError.
    """
    table = ListenerTable(
        allow=list(allow), deny=list(deny), private=list(private), sni=sni, max_bytes_out=max_bytes_out
    )
    rules = _rules(table, "flag", None)
    places = [listened(address, "--listen") for address in listen]
    places += [Place("unix", path=path, mode=_mode(mode, "--mode", None)) for path in unix]
    places += [Place("activated", path=name, port=number) for number, name in enumerate(activated)]
    return tuple((place, rules) for place in places)


def listened(address: str, flag: str) -> Place:
    """The TCP address that a flag names. Raises PolicyError that names the flag."""
    return _tcp(address, flag, None)


def _place(table: ListenerTable, source: str, key: str) -> Place:
    given = [name for name in ("tcp", "unix", "activated") if getattr(table, name) is not None]
    if len(given) != 1:
        raise PolicyError("a listener has exactly one of tcp, unix and activated", source=source, key=key)
    if table.tcp is not None:
        return _tcp(table.tcp, source, f"{key}.tcp")
    if table.unix is not None:
        return Place("unix", path=table.unix, mode=_mode(table.mode, source, f"{key}.mode"))
    return Place("activated", path=table.activated or "")


def _tcp(text: str, source: str, key: str | None) -> Place:
    host, separator, port = text.rpartition(":")
    try:
        if not separator or not port.isdecimal():
            raise MalformedHost(text)
        if not host:
            return Place("tcp", "127.0.0.1", _port(port))
        target = parse_target(f"{host}:1")
    except MalformedHost:
        raise PolicyError(
            f'not an address to listen on: {text!r}; write "127.0.0.1:3128", "[::1]:3128" or ":3128" (loopback)',
            source=source,
            key=key,
        ) from None
    if target.host == "localhost":
        return Place("tcp", "127.0.0.1", _port(port))
    if not target.address:
        raise PolicyError(f"listen on an address, not on a name: {text!r}", source=source, key=key)
    return Place("tcp", target.host, _port(port))


def _port(text: str) -> int:
    """0 to 65535; 0 lets the system pick one. Raises MalformedHost."""
    if len(text) > 5 or int(text) > 65535:
        raise MalformedHost(text)
    return int(text)


def _mode(text: str, source: str, key: str | None) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise PolicyError(f'not file permissions: {text!r}; write them in octal, like "0660"', source=source, key=key)
    return mode


def _rules(table: ListenerTable, source: str, key: str | None) -> Rules:
    """The rules of a listener. A mistake is named by its key in the file, or by its flag where there is no key."""

    def parsed(name: str, use: Use) -> list[Rule]:
        found: list[Rule] = []
        for text in getattr(table, name):
            with _told(name, source, key):
                found.append(parse_rule(text, source=source, use=use))
        return found

    with _told("max-bytes-out", source, key):
        limit = None if table.max_bytes_out is None else parse_size(table.max_bytes_out)
    return Rules.build(
        allow=parsed("allow", "allow"),
        deny=parsed("deny", "deny"),
        private=parsed("private", "private"),
        sni=table.sni,
        max_bytes_out=limit,
    )


@contextmanager
def _told(name: str, source: str, key: str | None) -> Generator[None]:
    try:
        yield
    except PolicyError as error:
        if key is None:
            raise PolicyError(error.problem, source=f"--{name}") from None
        raise PolicyError(error.problem, source=source, key=f"{key}.{name}") from None
