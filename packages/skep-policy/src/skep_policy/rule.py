"""One rule of `network.allow`, `network.deny` or `network.private`, and what is refused instead of guessed at.

A rule is a target and a port. Targets:

    host.example.com     that name, not what is below it
    *.example.com        every name below it at any depth, not example.com itself
    192.0.2.7            requests that name that address; never a name that resolves to it
    10.1.0.0/16          requests that name an address of that network
    2001:db8::1, [2001:db8::1]:443, fd00::/8, [fd00::/8]:443
    *                    everything

Ports: none means 80 and 443 when allowing and every port when denying (who denies a host means the host); `:22` that
one, `:*` every one. `*` alone is every port, `*:443` is every host at that port.
"""

from __future__ import annotations

from .address import number_of, parse_network
from .errors import MalformedHost, PolicyError
from .hosts import MAX_PORT, canonical_host, format_ipv4, format_ipv6, is_address, parse_port, split_port
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Kind = Literal["any", "name", "below", "net"]
    Use = Literal["allow", "deny", "private"]

SPECIAL_TLDS = frozenset(
    (
        *("test", "localhost", "invalid", "example"),  # RFC 6761
        "local",  # RFC 6762
        *("intranet", "internal", "private", "corp", "home", "lan"),  # RFC 6762 appendix G; ICANN reserved `internal`
        *("onion", "alt"),  # RFC 7686, RFC 9476
    )
)
"""Top-level domains nobody can register below, so that a wildcard over one of them is no wildcard over strangers."""


class Rule(Value):
    """One parsed rule. `text` is its normal form; `host` what it is about: a name, the parent of a wildcard, a network
    in CIDR form, or empty for `*`. `port` is "web" when none was written.
    """

    text: str
    source: str
    kind: Kind
    host: str
    port: int | Literal["web", "any"] = "web"

    def __str__(self) -> str:
        return self.text


def parse_rule(text: str, *, source: str = "flag", use: Use = "allow") -> Rule:
    """The rule a text means. Raises PolicyError that says what to write instead.

    `use` is the list the rule stands in: a denied wildcard may cover a whole top-level domain, a private name has no
    port.
    """
    try:
        return _parse(text, source, use)
    except MalformedHost as error:
        problem = str(error) if repr(text) in str(error) else f"{error}: {text!r}"
        raise PolicyError(f"{problem}; write a name, an address or *.name, then :port or :* if needed") from None


def _parse(text: str, source: str, use: Use) -> Rule:
    """Raises PolicyError where the right form is known, MalformedHost where only the grammar can be named."""
    if not text.strip():
        raise _refuse(text, "an empty rule", 'a domain like "api.example.com"')
    if "://" in text:
        host = text.partition("://")[2].partition("/")[0]
        raise _refuse(text, "a rule is a host, not a URL", f'"{host}"' if host else "the host alone")
    if text.strip() != text:
        raise _refuse(text, "spaces around a rule", f'"{text.strip()}"')
    if text == "*":
        return Rule("*", source, "any", "", "any")
    host, written = split_port(text)
    if use == "private" and written is not None:
        raise _refuse(text, "a private name is meant at every port", f'"{host}"')
    port = _parse_port(text, host, written)
    suffix = "" if written is None else f":{written}"
    if host == "*":
        return Rule("*" if port == "any" else "*" + suffix, source, "any", "", port)
    if "/" in host or ":" in host:
        return _parse_network(text, source, use, host, port, suffix)
    if "*" in host:
        name = _wildcard_parent(text, host, use)
        return Rule(f"*.{name}{suffix}", source, "below", name, port)
    name = canonical_host(host)
    if is_address(name):
        return _parse_network(text, source, use, name, port, suffix)
    return Rule(name + suffix, source, "name", name, port)


def _parse_port(text: str, host: str, written: str | None) -> int | Literal["web", "any"]:
    if written is None:
        return "web"
    if written == "*":
        return "any"
    try:
        return parse_port(written)
    except MalformedHost:
        raise _refuse(text, f'"{written}" is not a port', f'"{host}:443" (1 to {MAX_PORT}) or "{host}:*"') from None


def _parse_network(text: str, source: str, use: Use, host: str, port: int | Literal["web", "any"], suffix: str) -> Rule:
    network = parse_network(host)
    if network is None:
        raise _no_network(text, host)
    address, prefix = network
    whole = prefix == (128 if ":" in address else 32)
    shown = address if whole else f"{address}/{prefix}"
    if use == "private":
        raise _refuse(text, "private lists names", f'"{shown}" in network.allow, which lets that address be named')
    if suffix and ":" in address:
        shown = f"[{shown}]"
    return Rule(shown + suffix, source, "net", f"{address}/{prefix}", port)


def _no_network(text: str, host: str) -> PolicyError:
    address, slash, rest = host.partition("/")
    length, colon, port = rest.partition(":")
    if "%" in host:
        return _refuse(text, "an address has no zone here", f'"{host.partition("%")[0]}"')
    if colon and ":" in address:
        return _refuse(text, "IPv6 with a port stands in brackets", f'"[{address}/{length}]:{port}"')
    known = parse_network(address)
    if slash and known is None and ":" not in address:
        return _refuse(text, "a rule has no path", f'"{address}"')
    if known is not None and length.isascii() and length.isdigit() and int(length) <= known[1]:
        number, width = number_of(known[0])
        kept = number >> width - int(length) << width - int(length)
        network = format_ipv6(kept) if width == 128 else format_ipv4(kept)
        return _refuse(text, "a network with bits set after its prefix", f'"{network}/{length}"')
    return _refuse(text, "not an address or network", '"10.1.0.0/16", "fd00::/8", or with a port "[fd00::/8]:443"')


def _wildcard_parent(text: str, host: str, use: Use) -> str:
    """The canonical name below which the wildcard matches."""
    stars, dot, parent = host.partition(".")
    if stars != "*" or not dot or "*" in parent:
        # `*foo.com`, `a.*.com`, `foo*`: say what the nearest thing we can enforce is
        rest = host.rpartition("*")[2].lstrip(".") or "com"
        wide = "." not in rest and rest not in SPECIAL_TLDS
        nearest = f"*.example.{rest}" if wide else f"*.{rest}"
        raise _refuse(text, "a wildcard stands for whole labels, first in the name", f'"{nearest}"')
    name = canonical_host(parent)
    if is_address(name):
        raise _refuse(text, "a wildcard over an address", f'a network, like "{name}/24"')
    if "." not in name and use == "allow" and name not in SPECIAL_TLDS:
        raise _refuse(
            text, f"a wildcard over all of .{name}", f'the domains one by one, "*.example.{name}"; "*" alone allows all'
        )
    return name


def _refuse(text: str, problem: str, instead: str) -> PolicyError:
    return PolicyError(f"{problem}: {text!r}; write {instead}")
