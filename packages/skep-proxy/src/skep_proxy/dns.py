"""Names asked for inside a sandbox, answered from the rules. Nothing is ever resolved upstream. Pure: bytes in, bytes
out.

    an allowed name         A and AAAA: its synthetic addresses; any other type: no data
    localhost               A and AAAA: loopback (RFC 6761)
    anything else           NXDOMAIN, so that programs fail at once

A query names no port: a name is answered when the rules allow it at any port, and the connection is decided again. A
denied A or AAAA query is told to the caller, as port 0, once per name within a moment.
"""

from __future__ import annotations

import struct

from skep_policy import MalformedHost, Rules, Verdict, canonical_host, is_address
from skep_policy.hosts import parse_ipv4, parse_ipv6
from skep_policy.value import Value
from skep_policy.verdict import MALFORMED

from .synthetic import Names

MAX_QUERY = 4096
"""Bytes of a datagram that are read; a query with one question has a few hundred."""

TTL = 60
"""Seconds a program may keep an answer. The address stays valid as long as the sandbox; this lets a changed policy
show.
"""

TOLD = 1.0
"""Seconds within which the same denied name is told once: A and AAAA are one lookup."""

NO_PORT = 0
"""Port in the event about a denied name: which was meant is not known."""

FIRST_PORT = 443
"""The port a name is judged at first."""

MAX_NAME = 255
"""Bytes of a name with its length bytes (RFC 1035 section 3.1)."""

_A, _AAAA, _IN = 1, 28, 1
_FORMERR, _SERVFAIL, _NXDOMAIN, _NOTIMP = 1, 2, 3, 4
_HEADER = struct.Struct("!6H")
_RECORD = struct.Struct("!HHHIH")
_POINTER_TO_QUESTION = 0xC00C


class Denied(Value):
    """A name that was asked for and is not allowed at any port."""

    host: str
    port: int
    verdict: Verdict


class Answer(Value):
    """`message` is what to send back, nothing when empty."""

    message: bytes
    denied: Denied | None = None


class Desk:
    """Answers for one sandbox. `rules` and the times given to `answer` may change between calls."""

    __slots__ = ("_names", "_ports", "_ports_of", "_told")

    def __init__(self, names: Names) -> None:
        self._names = names
        self._told: dict[str, float] = {}
        self._ports: tuple[int, ...] = ()
        self._ports_of: Rules | None = None

    def answer(self, query: bytes, rules: Rules, *, now: float) -> Answer:
        """The answer to one datagram, whatever it holds."""
        if len(query) < _HEADER.size:
            return Answer(b"")
        ident, flags, questions, *_ = _HEADER.unpack_from(query)
        if flags & 0x8000:
            return Answer(b"")  # an answer: to answer it could make two servers talk for ever
        if flags & 0x7800:
            return Answer(_message(ident, flags, _NOTIMP))
        parsed = _question(query) if questions == 1 else None
        if parsed is None:
            return Answer(_message(ident, flags, _FORMERR))
        text, kind, question = parsed
        verdict, host = self._judge(text, rules)
        if not verdict.allow:
            told = kind in (_A, _AAAA) and not is_address(host) and self._worth_telling(host, now)
            denied = Denied(host, NO_PORT, verdict) if told else None
            return Answer(_message(ident, flags, _NXDOMAIN, question), denied)
        if kind not in (_A, _AAAA):
            return Answer(_message(ident, flags, 0, question))
        localhost = host == "localhost" or host.endswith(".localhost")
        addresses = ("127.0.0.1", "::1") if localhost else self._names.addresses(host)
        if addresses is None:
            return Answer(_message(ident, flags, _SERVFAIL, question))
        return Answer(_message(ident, flags, 0, question, _record(kind, addresses)))

    def _judge(self, text: str, rules: Rules) -> tuple[Verdict, str]:
        """The best verdict over the ports the rules know, and the canonical name."""
        try:
            host = canonical_host(text)
        except MalformedHost:
            return Verdict(False, MALFORMED), text
        if host == "localhost" or host.endswith(".localhost"):
            return Verdict(True, "allowed"), host
        verdict = rules.decide(host, FIRST_PORT)
        if is_address(host):
            return Verdict(False, MALFORMED), host
        if verdict.allow:
            return verdict, host
        for port in self._known_ports(rules):
            other = rules.decide(host, port)
            if other.allow:
                return other, host
        return verdict, host

    def _known_ports(self, rules: Rules) -> tuple[int, ...]:
        """Every port an allow rule writes, and one that none does."""
        if self._ports_of is not rules:
            written = {rule.port for rule in rules.allow if isinstance(rule.port, int)} | {80}
            self._ports = tuple(sorted(written))
            self._ports_of = rules
        return self._ports

    def _worth_telling(self, host: str, now: float) -> bool:
        last = self._told.get(host)
        if len(self._told) > 1024:
            self._told.clear()
        self._told[host] = now
        return last is None or now - last > TOLD


def _question(query: bytes) -> tuple[str, int, bytes] | None:
    """(name, type, the question's bytes) of a query with one question; None when it is malformed or not of the
    Internet.
    """
    labels: list[str] = []
    at = _HEADER.size
    while at < len(query):
        length = query[at]
        at += 1
        if at - _HEADER.size > MAX_NAME:
            return None
        if length == 0:
            if at + 4 > len(query):
                return None
            kind, group = struct.unpack_from("!HH", query, at)
            return (".".join(labels), kind, query[_HEADER.size : at + 4]) if group == _IN else None
        label = query[at : at + length]
        if length > 63 or len(label) < length or b"." in label:
            return None
        labels.append(label.decode("latin-1"))
        at += length
    return None


def _message(ident: int, flags: int, code: int, question: bytes = b"", record: bytes = b"") -> bytes:
    answered = 0x8080 | flags & 0x7900 | code  # QR, RA; the opcode and RD of the query
    return _HEADER.pack(ident, answered, 1 if question else 0, 1 if record else 0, 0, 0) + question + record


def _record(kind: int, addresses: tuple[str, str]) -> bytes:
    v4, v6 = addresses
    data = (parse_ipv4(v4) or 0).to_bytes(4, "big") if kind == _A else (parse_ipv6(v6) or 0).to_bytes(16, "big")
    return _RECORD.pack(_POINTER_TO_QUESTION, kind, _IN, TTL, len(data)) + data
