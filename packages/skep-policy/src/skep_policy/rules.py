"""Which hosts may be reached: the rules of `network.allow`, `network.deny` and `network.private` (see `rule`), compiled
once.

Who wins, in the order of the code of `decide`:

1. what has no normal form is denied as malformed;
2. a deny rule of any specificity, also one for an address that the requested address embeds; who denies one of
   localhost, 127.0.0.1 and ::1 denies all three;
3. an allow rule, the most specific first (this chooses the rule that is named, not the outcome); one for localhost
   is also one for 127.0.0.1 and ::1, which is where a program that was told `localhost` knocks;
4. nothing matched: denied.

`check_address` is the second half, after resolution: see there.

Every lookup is a dictionary access: one per label of a name, one per distinct prefix length for an address.
"""

from __future__ import annotations

from .address import GLOBAL, LOOPBACK, NO_ADDRESS, aliases, classify, number_of
from .errors import MalformedHost
from .hosts import MAX_PORT, canonical_host, is_address
from .rule import Rule, parse_rule
from .value import Value, lazy
from .verdict import ALLOWED, DENIED_BY_RULE, MALFORMED, NOT_LISTED, PRIVATE_ADDRESS, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from .rule import Kind, Use

LOCALHOST = ("localhost", "127.0.0.1", "::1")
"""One service by three names: what `localhost` is in /etc/hosts."""

WEB_PORTS = (80, 443)
"""What an allow rule without a port means."""

REMEMBERED = 1024
"""Verdicts kept by one set of rules: clients ask for the same few targets again and again."""

MAX_HOST = 255
"""Characters of a host whose verdict is kept."""


class Rules(Value):
    """An immutable set of rules and its index. Equal when the lists are; encodes as the lists, so that a policy on disk
    holds what was in force.
    """

    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    private: tuple[Rule, ...] = ()
    sni: Literal["match", "off"] = "match"
    max_bytes_out: int | None = None

    @classmethod
    def build(
        cls,
        allow: Iterable[Rule | str] = (),
        deny: Iterable[Rule | str] = (),
        private: Iterable[Rule | str] = (),
        *,
        sni: Literal["match", "off"] = "match",
        max_bytes_out: int | None = None,
    ) -> Rules:
        """Rules of texts or parsed rules, duplicates dropped. Raises PolicyError for a text that is no rule."""
        return cls(
            _unique(allow, "allow"),
            _unique(deny, "deny"),
            _unique(private, "private"),
            sni=sni,
            max_bytes_out=max_bytes_out,
        )

    @lazy
    def mode(self) -> Literal["none", "filtered", "open"]:
        """none: nothing is allowed. open: everything is, with no deny and no budget, so no filter is needed."""
        if not self.allow:
            return "none"
        everything = any(rule.kind == "any" and rule.port == "any" for rule in self.allow)
        return "open" if everything and not self.deny and self.max_bytes_out is None else "filtered"

    @lazy
    def ports(self) -> frozenset[int] | None:
        """The ports that allow rules name, but those of `services`; None when a rule says every port."""
        ports: set[int] = set()
        for rule in self.allow:
            if rule.port == "any":
                return None
            if not _is_service(rule):
                ports.update(_ports(rule))
        return frozenset(ports)

    @lazy
    def services(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of every loopback service an allow rule names by `localhost` or by one loopback address."""
        found: dict[tuple[str, int], None] = {}
        for rule in self.allow:
            if _is_service(rule) and rule.port != "any":
                found.update(dict.fromkeys((rule.host.partition("/")[0], port) for port in _ports(rule)))
        return tuple(sorted(found))

    def decide(self, host: str, port: int) -> Verdict:
        """May `host` be asked for at `port`? Takes any text and any number and never raises."""
        memo = self._memo
        verdict = memo.get((host, port))
        if verdict is None:
            verdict = self._decide(host, port)
            if len(memo) >= REMEMBERED:
                memo.clear()
            if len(host) <= MAX_HOST:
                memo[host, port] = verdict
        return verdict

    def _decide(self, host: str, port: int) -> Verdict:
        try:
            canonical = canonical_host(host)
        except MalformedHost:
            return _MALFORMED
        if not 0 < port <= MAX_PORT:
            return _MALFORMED
        address = is_address(canonical)
        denied = self._denied(canonical, port)
        if denied is not None:
            return Verdict(False, DENIED_BY_RULE, denied.text, denied.source)
        rule = self._allows.find(canonical, port, address)
        if rule is None and address and canonical in LOCALHOST:
            rule = self._allows.find("localhost", port, False)
        if rule is None:
            return _NOT_LISTED
        private = rule.kind == "net" or self._privates.find(canonical, 0, address) is not None
        return Verdict(True, ALLOWED, rule.text, rule.source, private and not _is_localhost(rule))

    def _denied(self, host: str, port: int) -> Rule | None:
        asked = (host, *aliases(host))
        if any(name in LOCALHOST for name in asked):
            asked += LOCALHOST
        for name in asked:
            if rule := self._denies.find(name, port, is_address(name)):
                return rule
        return None

    def check_address(self, verdict: Verdict, ip: str) -> Verdict:
        """The same verdict when the address a verdict's target resolved to may be dialled, else a denying one.

        Anything global may; loopback for a rule that says `localhost` (and nothing but loopback for it); any address
        when the rule is a literal or the name is in `private`. A plain `*` opens names, not the private network: it is
        guarded like every name, with denies beside it or without. `private = ["*"]` turns the guard off.
        """
        if not verdict.allow:
            return verdict
        kind = classify(ip)
        if verdict.rule in self._loopback_only:
            allowed = kind == LOOPBACK
        else:
            allowed = kind == GLOBAL or (verdict.private and kind != NO_ADDRESS)
        return verdict if allowed else Verdict(False, PRIVATE_ADDRESS, verdict.rule, verdict.source)

    @lazy
    def _memo(self) -> dict[tuple[str, int], Verdict]:
        return {}

    @lazy
    def _allows(self) -> _Index:
        return _Index(self.allow, "allow")

    @lazy
    def _denies(self) -> _Index:
        return _Index(self.deny, "deny")

    @lazy
    def _privates(self) -> _Index:
        return _Index(self.private, "private")

    @lazy
    def _loopback_only(self) -> frozenset[str]:
        return frozenset(rule.text for rule in self.allow if _is_localhost(rule))


_MALFORMED = Verdict(False, MALFORMED)
_NOT_LISTED = Verdict(False, NOT_LISTED)
_EVERY_PORT = 0
"""The key of "every port" in a `_ByPort`: no request has port 0."""

_ByPort = dict[int, Rule]


class _Index:
    """Rules by what they are about, then by port. The first of two equal rules is the one that is named."""

    __slots__ = ("any", "below", "name", "net", "prefixes")

    def __init__(self, rules: Iterable[Rule], use: Use) -> None:
        self.any: _ByPort = {}
        self.name: dict[str, _ByPort] = {}
        self.below: dict[str, _ByPort] = {}
        self.net: dict[tuple[int, int, int], _ByPort] = {}
        for rule in rules:
            match rule.kind:
                case "any":
                    by_port = self.any
                case "name":
                    by_port = self.name.setdefault(rule.host, {})
                case "below":
                    by_port = self.below.setdefault(rule.host, {})
                case "net":
                    by_port = self.net.setdefault(_net_key(rule.host), {})
            for port in _ports(rule) if use == "allow" or rule.port != "web" else (_EVERY_PORT,):
                by_port.setdefault(port, rule)
        lengths = sorted({(width, prefix) for width, prefix, _ in self.net}, reverse=True)
        self.prefixes = {width: [prefix for w, prefix in lengths if w == width] for width in (32, 128)}

    def find(self, host: str, port: int, address: bool) -> Rule | None:
        """The most specific rule that matches a canonical host at a port; port 0 only by rules for every port."""
        found = self._find_address(host, port) if address else self._find_name(host, port)
        return found or _at(self.any, port)

    def _find_name(self, host: str, port: int) -> Rule | None:
        if (by_port := self.name.get(host)) and (rule := _at(by_port, port)):
            return rule
        if self.below:
            dot = host.find(".")
            while dot >= 0:
                by_port = self.below.get(host[dot + 1 :])
                if by_port and (rule := _at(by_port, port)):
                    return rule
                dot = host.find(".", dot + 1)
        return None

    def _find_address(self, host: str, port: int) -> Rule | None:
        if not self.net:
            return None
        number, width = number_of(host)
        for prefix in self.prefixes[width]:
            by_port = self.net.get((width, prefix, number >> width - prefix))
            if by_port and (rule := _at(by_port, port)):
                return rule
        return None


def _at(by_port: _ByPort, port: int) -> Rule | None:
    return by_port.get(port) or by_port.get(_EVERY_PORT)


def _ports(rule: Rule) -> tuple[int, ...]:
    if rule.port == "web":
        return WEB_PORTS
    return (_EVERY_PORT,) if rule.port == "any" else (rule.port,)


def _net_key(cidr: str) -> tuple[int, int, int]:
    address, _, prefix = cidr.partition("/")
    number, width = number_of(address)
    return width, int(prefix), number >> width - int(prefix)


def _is_localhost(rule: Rule) -> bool:
    """RFC 6761 6.3: localhost and every name below it are loopback, whatever a resolver says."""
    return rule.kind in ("name", "below") and (rule.host == "localhost" or rule.host.endswith(".localhost"))


def _is_service(rule: Rule) -> bool:
    if rule.kind == "net":
        address, _, prefix = rule.host.partition("/")
        return prefix in ("32", "128") and classify(address) == LOOPBACK
    return rule.kind == "name" and rule.host == "localhost"


def _unique(rules: Iterable[Rule | str], use: Use) -> tuple[Rule, ...]:
    if isinstance(rules, str):
        raise TypeError("a list of rules, not one text")
    parsed: dict[tuple[Kind, str, int | str], Rule] = {}
    for rule in rules:
        rule = parse_rule(rule, use=use) if isinstance(rule, str) else rule
        parsed.setdefault((rule.kind, rule.host, rule.port), rule)
    return tuple(parsed.values())
