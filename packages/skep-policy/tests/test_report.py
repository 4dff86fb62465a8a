"""Totals per destination, however many a worker names."""

from __future__ import annotations

import msgspec
import pytest
from skep_policy import Verdict
from skep_policy.events import Closed, Decision
from skep_policy.report import LISTED, Egress, limit_words

YES, NO = Verdict(True, "allowed", "a.test"), Verdict(False, "not-listed")


def decision(host: str, verdict: Verdict, port: int = 443) -> Decision:
    return Decision(0.0, host, port, "connect", verdict)


def test_a_limit_that_was_met_is_not_said_to_have_ended_it() -> None:
    assert limit_words("wall") == "ended by the wall limit"
    assert limit_words("file-size") == "ended by the file-size limit"
    assert limit_words("disk-free") == "a disk it writes on had less left than the disk-free limit wants"
    for limit in ("memory", "processes"):
        assert limit_words(limit).startswith(f"the {limit} limit was reached")


def test_decisions_and_bytes_are_counted_per_destination_in_the_order_first_seen() -> None:
    egress = Egress()
    why = "192.0.2.1:22: Connection refused"
    for event in (
        decision("b.test", NO),
        decision("a.test", YES),
        Closed(0.0, "a.test", 443, "connect", 5, 7, None),
        decision("b.test", NO),
        decision("a.test", NO, 22),
        decision("a.test", YES),
        Closed(0.0, "a.test", 443, "connect", 1, 1, None),
        decision("c.test", YES, 22),
        decision("c.test", YES, 22),
        Closed(0.0, "c.test", 22, "connect", 0, 0, "connrefused", why),
    ):
        egress.add(event)
    assert msgspec.to_builtins(egress) == {
        "allowed": [
            {"host": "a.test", "port": 443, "count": 2, "bytes_in": 6, "bytes_out": 8, "unreached": 0, "why": ""},
            {"host": "c.test", "port": 22, "count": 2, "bytes_in": 0, "bytes_out": 0, "unreached": 1, "why": why},
        ],
        "denied": [
            {"host": "b.test", "port": 443, "count": 2, "reason": "not-listed"},
            {"host": "a.test", "port": 22, "count": 1, "reason": "not-listed"},
        ],
    }


@pytest.mark.parametrize("verdict", [YES, NO], ids=["allowed", "denied"])
def test_a_worker_that_names_any_number_of_hosts_makes_no_endless_report(verdict: Verdict) -> None:
    egress = Egress()
    for number in range(LISTED + 1000):
        egress.add(decision(f"h{number}.test", verdict))
    egress.add(decision("h0.test", verdict))
    entries = egress.allowed if verdict.allow else egress.denied
    assert len(entries) == LISTED + 1 and entries[0].count == 2
    assert (entries[-1].host, entries[-1].port, entries[-1].count) == ("(others)", 0, 1000)


def test_totals_go_on_where_a_decoded_report_ends() -> None:
    egress = Egress()
    egress.add(decision("a.test", NO))
    again = msgspec.json.decode(msgspec.json.encode(egress), type=Egress)
    again.add(decision("a.test", NO))
    assert [entry.count for entry in again.denied] == [2]
