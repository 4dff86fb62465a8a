"""The log as a chain: whatever is done to its bytes is noticed, and where is named."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_cli.evidence.chain import Head, Problem, against_head, encode, genesis, read

pytestmark = pytest.mark.guarantee("record-chain")
RUN = "1m8n770yq"
MORE: list[tuple[str, dict[str, object]]] = [
    ("begun", {"task": "mend ü \udcff", "n": 1}),
    ("policy", {"files": {"policy.json": "ab" * 32}}),
    ("egress", {"host": "a.example.com", "port": 443}),
    ("ended", {"exit_code": 0}),
    ("sealed", {"files": {"run.json": None}}),
]


def lines_of(run: str = RUN) -> list[bytes]:
    lines: list[bytes] = []
    prev = genesis(run)
    for number, (kind, data) in enumerate(MORE, 1):
        line, prev = encode(number, f"2026-11-30T00:00:0{number}.000001Z", prev, kind, data)
        lines.append(line)
    return lines


LINES = lines_of()
HEAD = Head(len(LINES), json.loads(LINES[-1])["hash"])


def problem(lines: list[bytes], head: Head | None = HEAD) -> Problem | None:
    return against_head(read(b"".join(lines), RUN), head)


def test_an_untouched_log_holds() -> None:
    chain = read(b"".join(LINES), RUN)
    assert problem(LINES) is None
    assert [event.kind for event in chain.events] == [kind for kind, _ in MORE]
    assert chain.events[0].data == MORE[0][1]


def test_the_hash_is_that_of_the_line_without_it() -> None:
    record = json.loads(LINES[2])
    body = LINES[2].decode().replace(f',"hash":"{record["hash"]}"', "").rstrip("\n")
    assert hashlib.sha256(body.encode()).hexdigest() == record["hash"]
    assert record["prev"] == json.loads(LINES[1])["hash"]


@pytest.mark.parametrize("at", range(len(LINES)))
def test_a_removed_line_is_noticed(at: int) -> None:
    found = problem([*LINES[:at], *LINES[at + 1 :]])
    assert found is not None
    assert found.line == at + 1 and not found.torn


@pytest.mark.parametrize("at", range(len(LINES) - 1))
def test_lines_that_changed_places_are_noticed(at: int) -> None:
    found = problem([*LINES[:at], LINES[at + 1], LINES[at], *LINES[at + 2 :]])
    assert found is not None
    assert found.line == at + 1 and not found.torn


@pytest.mark.parametrize("keep", range(len(LINES)))
def test_a_log_cut_off_between_lines_is_noticed(keep: int) -> None:
    found = problem(LINES[:keep])
    assert found is not None
    assert found.line == keep + 1 and not found.torn


def test_a_log_cut_off_within_a_line_is_noticed_as_more_than_a_crash() -> None:
    found = problem([*LINES[:-1], LINES[-1][:-20]])
    assert found is not None
    assert found.line == len(LINES) and not found.torn


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    content = bytearray(b"".join(LINES))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != content[at]))
    found = against_head(read(bytes(content), RUN), HEAD)
    assert found is not None
    assert not found.torn
    assert found.line is not None and found.line <= content[:at].count(b"\n") + 1


def test_a_line_that_means_the_same_but_is_written_otherwise_is_noticed() -> None:
    found = problem([LINES[0], json.dumps(json.loads(LINES[1])).encode() + b"\n", *LINES[2:]])
    assert found is not None
    assert found.line == 2


def test_an_appended_line_that_does_not_follow_is_noticed() -> None:
    found = problem([*LINES, LINES[-1]])
    assert found is not None
    assert found.line == len(LINES) + 1 and not found.torn


def test_the_log_of_another_run_is_noticed() -> None:
    found = problem(lines_of("1m8n770yr"))
    assert found is not None
    assert found.line == 1


def test_what_a_crash_leaves_is_told_apart() -> None:
    unfinished = problem([*LINES, b'{"seq":6,"ti'])
    assert unfinished is not None
    assert unfinished.torn and unfinished.line == len(LINES) + 1
    behind = problem(LINES, Head(3, json.loads(LINES[2])["hash"]))
    assert behind is not None
    assert behind.torn and behind.line == 4


def test_a_head_that_is_missing_or_of_another_log_is_noticed() -> None:
    missing = problem(LINES, None)
    assert missing is not None
    assert missing.file == "events.head"
    other = problem(LINES, Head(len(LINES), "0" * 64))
    assert other is not None
    assert not other.torn


@given(st.binary(max_size=400))
def test_bytes_that_are_no_log_are_a_problem_and_no_exception(content: bytes) -> None:
    chain = read(content, RUN)
    assert chain.size == 0 and not chain.events
    assert (chain.problem is None) == (content == b"")
