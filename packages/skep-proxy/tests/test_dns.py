"""Names inside a sandbox."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import Rules
from skep_proxy.dns import Desk
from skep_proxy.synthetic import CAPACITY, Names

A, AAAA, TXT, HTTPS, PTR = 1, 28, 16, 65, 12
RULES = Rules.build(allow=["good.test", "*.wild.test", "git.test:22", "any.test:*"], deny=["no.wild.test"])


def query(name: str, kind: int = A, *, ident: int = 7, flags: int = 0x100, group: int = 1) -> bytes:
    labels = b"".join(bytes((len(label),)) + label.encode() for label in name.split(".") if label)
    return struct.pack("!6H", ident, flags, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, group)


def ask(desk: Desk, name: str, kind: int = A, now: float = 0.0) -> tuple[int, bytes]:
    """(response code, data of the one record or nothing)."""
    message = desk.answer(query(name, kind), RULES, now=now).message
    ident, flags, questions, answers, *_ = struct.unpack_from("!6H", message)
    assert (ident, questions, flags & 0x8000) == (7, 1, 0x8000)
    if not answers:
        return flags & 15, b""
    length = 4 if kind == A else 16
    assert int.from_bytes(message[-length - 2 : -length], "big") == length
    return flags & 15, message[-length:]


@pytest.mark.parametrize("name", ["good.test", "GOOD.test", "a.b.wild.test", "git.test", "any.test"])
def test_allowed_name_has_addresses_that_lead_back_to_it(name: str) -> None:
    names = Names()
    desk = Desk(names)
    code, v4 = ask(desk, name)
    assert code == 0 and v4[:2] in (b"\xc6\x12", b"\xc6\x13")
    assert names.name_of(".".join(map(str, v4))) == name.lower()
    code, v6 = ask(desk, name, AAAA)
    assert code == 0 and v6[:8] == bytes.fromhex("fd5b6b6570000000")
    assert names.name_of(f"fd5b:6b65:7000::{int.from_bytes(v6[8:], 'big'):x}") == name.lower()
    assert ask(desk, name) == (0, v4), "the same for as long as the table lives"


@pytest.mark.parametrize(
    "name", ["bad.test", "no.wild.test", "wild.test", "4.3.2.1.in-addr.arpa", "127.0.0.1", "a b.test"]
)
@pytest.mark.parametrize("kind", [A, AAAA, TXT])
def test_other_names_do_not_exist(name: str, kind: int) -> None:
    assert ask(Desk(Names()), name, kind) == (3, b"")


@pytest.mark.parametrize("kind", [TXT, HTTPS, 255, 33])
def test_other_types_of_an_allowed_name_have_no_data(kind: int) -> None:
    assert ask(Desk(Names()), "good.test", kind) == (0, b"")


def test_localhost_is_loopback() -> None:
    assert ask(Desk(Names()), "localhost") == (0, b"\x7f\0\0\1")
    assert ask(Desk(Names()), "x.localhost", AAAA) == (0, bytes(15) + b"\1")


def test_denied_name_is_told_once_per_lookup() -> None:
    desk = Desk(Names())
    first = desk.answer(query("bad.test"), RULES, now=0.0).denied
    assert first is not None and (first.host, first.port, first.verdict.reason) == ("bad.test", 0, "not-listed")
    assert desk.answer(query("bad.test", AAAA), RULES, now=0.1).denied is None
    assert desk.answer(query("bad.test"), RULES, now=5.0).denied is not None
    assert desk.answer(query("no.wild.test"), RULES, now=0.0).denied is not None
    assert desk.answer(query("other.test", TXT), RULES, now=0.0).denied is None
    assert desk.answer(query("good.test"), RULES, now=0.0).denied is None


def test_new_rules_count_from_the_next_question() -> None:
    desk = Desk(Names())
    assert desk.answer(query("new.test"), RULES, now=0).message[3] & 15 == 3
    assert desk.answer(query("new.test"), Rules.build(allow=["new.test:5"]), now=0).message[3] & 15 == 0


def test_full_table_is_a_server_failure() -> None:
    names = Names()
    for number in range(CAPACITY):
        names.addresses(f"n{number}.wild.test")
    assert ask(Desk(names), "one.more.wild.test")[0] == 2
    assert ask(Desk(names), "n0.wild.test")[0] == 0


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (query("good.test", flags=0x8100), None),
        (b"", None),
        (b"\0" * 11, None),
        (query("good.test", flags=0x2000), 4),
        (query("good.test", group=3), 1),
        (query("good.test")[:-1], 1),
        (struct.pack("!6H", 7, 0x100, 2, 0, 0, 0), 1),
        (struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1", 1),
        (struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + b"\x09good.test\0\0\1\0\1", 1),
        (query(".".join(["x" * 63] * 3 + ["x" * 61])), 3),
        (query(".".join(["x" * 63] * 3 + ["x" * 62])), 1),
        (query(".".join(["x"] * 2000)), 1),
        (query("x" * 64), 1),
    ],
    ids=[
        *("answer", "empty", "short", "opcode", "class", "cut", "two questions", "pointer", "dot in a label"),
        *("255 bytes of name", "256 bytes of name", "endless name", "label too long"),
    ],
)
def test_odd_messages(message: bytes, code: int | None) -> None:
    answer = Desk(Names()).answer(message, RULES, now=0).message
    assert answer == b"" if code is None else answer[3] & 15 == code


@pytest.mark.parametrize("kind", [A, AAAA, TXT])
def test_question_cut_anywhere_is_no_question_and_bytes_behind_it_are_ignored(kind: int) -> None:
    whole = query("a.b.wild.test", kind)
    answer = Desk(Names()).answer(whole, RULES, now=0).message
    for size in range(12, len(whole)):
        assert Desk(Names()).answer(whole[:size], RULES, now=0).message[3] & 15 == 1
    for behind in (b"\0", b"\0\0\x29\x10\0\0\0\0\0\0\0", whole):
        assert Desk(Names()).answer(whole + behind, RULES, now=0).message == answer


def test_address_nobody_was_given_has_no_name() -> None:
    names = Names()
    names.addresses("good.test")
    assert names.name_of("198.18.0.1") == "good.test"
    for address in (
        "198.18.0.0",
        "198.18.0.2",
        "198.17.255.255",
        "192.0.2.1",
        "fd5b:6b65:7000::2",
        "fd5b:6b65:7000::",
        "::1",
    ):
        assert names.name_of(address) is None


@given(st.binary(max_size=200))
def test_whatever_comes_is_answered_or_dropped(noise: bytes) -> None:
    """Never an exception, never an answer longer than the question and one record."""
    for message in (noise, query("good.test")[:14] + noise, struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + noise):
        assert len(Desk(Names()).answer(message, RULES, now=0).message) <= len(message) + 28
