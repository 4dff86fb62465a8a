"""The audit log as a chain of records: pure, so that it can be checked by anyone who has the bytes.

A line is `{"seq":N,"time":T,"prev":P,"kind":K,"data":{...},"hash":H}` with exactly these keys in this order, no spaces,
the keys of `data` sorted, everything beyond ASCII escaped. H is the SHA-256 of the line without `,"hash":"H"`, P is the
hash of the line before, and the first P is the SHA-256 of `skep audit 1 RUN`. So a line changed, dropped, moved or
taken from another run does not fit; lines cut off the end are missed by the head (`events.head`), kept in a file of its
own.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import msgspec

Data = dict[str, Any]


class Event(msgspec.Struct, frozen=True):
    """One record of a log whose chain held up to it."""

    seq: int
    time: str
    kind: str
    data: Data
    hash: str


class Head(msgspec.Struct, frozen=True):
    """How far the log was known to reach."""

    count: int
    hash: str


class Problem(msgspec.Struct, frozen=True):
    """What is wrong, and where: a line of the log, counted from 1, or a file.

    `torn` marks what a crash of skep leaves: an unfinished line or lines after the head. Everything before it is
    intact.
    """

    text: str
    line: int | None = None
    file: str | None = None
    torn: bool = False

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line is not None else self.file
        return f"{where}: {self.text}" if where else self.text


class Chain(msgspec.Struct, frozen=True):
    """What of a log holds: its events, the bytes they take, and the first problem, if there is one."""

    events: tuple[Event, ...]
    size: int
    problem: Problem | None


def genesis(run: str) -> str:
    """What the first record of a run's log follows."""
    return hashlib.sha256(f"skep audit 1 {run}".encode()).hexdigest()


def encode(seq: int, time: str, prev: str, kind: str, data: Data) -> tuple[bytes, str]:
    """A line of the log with its newline, and its hash."""
    rest = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    body = f'{{"seq":{seq},"time":{json.dumps(time)},"prev":"{prev}","kind":{json.dumps(kind)},"data":{rest}}}'
    digest = hashlib.sha256(body.encode("ascii")).hexdigest()
    return f'{body[:-1]},"hash":"{digest}"}}\n'.encode("ascii"), digest


def read(content: bytes, run: str) -> Chain:
    """Follow the chain as far as it holds."""
    events: list[Event] = []
    prev, at = genesis(run), 0
    while at < len(content):
        end = content.find(b"\n", at)
        number = len(events) + 1
        if end < 0:
            return Chain(tuple(events), at, Problem("is unfinished", line=number, torn=True))
        found = _event(content[at : end + 1], number, prev)
        if isinstance(found, Problem):
            return Chain(tuple(events), at, found)
        events.append(found)
        prev, at = found.hash, end + 1
    return Chain(tuple(events), at, None)


def _event(line: bytes, number: int, prev: str) -> Event | Problem:
    try:
        record: Any = json.loads(line)
        seq, time, its_prev, kind, data, digest = (
            record[key] for key in ("seq", "time", "prev", "kind", "data", "hash")
        )
        again, should_be = encode(seq, time, its_prev, kind, data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return Problem("is no record", line=number)
    if digest != should_be or again != line:
        return Problem("was changed: its hash is not that of its content", line=number)
    if its_prev != prev or seq != number:
        return Problem("does not follow the line before it: something was removed, moved or added", line=number)
    return Event(seq, time, kind, cast(Data, data), digest)


def against_head(chain: Chain, head: Head | None) -> Problem | None:
    """The first problem of a log, its head considered. Lines after the head are what a crash leaves."""
    if head is None:
        return chain.problem if chain.problem and not chain.problem.torn else Problem("is missing", file="events.head")
    if chain.problem and not chain.problem.torn:
        return chain.problem
    if len(chain.events) < head.count:
        return Problem(f"and on: missing, the head knows of {head.count}", line=len(chain.events) + 1)
    if head.count == 0 or chain.events[head.count - 1].hash != head.hash:
        return Problem("is not the line the head knows", line=max(1, head.count))
    if len(chain.events) > head.count:
        return Problem("comes after the head: skep died while it wrote", line=head.count + 1, torn=True)
    return chain.problem
