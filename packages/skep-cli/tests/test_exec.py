"""What a person is told at the end of `skep exec`."""

from __future__ import annotations

import pytest
from skep_cli.exec import TOLD, closing_lines, denial_lines
from skep_cli.session import Outcome
from skep_policy.report import Denied, Egress, Finding
from skep_policy.rules import Rules


@pytest.mark.parametrize("host", ["api.example.com", "192.0.2.7", "2001:db8::1"])
@pytest.mark.parametrize("port", [443, 5432])
def test_the_flag_that_is_named_allows_what_was_denied_and_nothing_else(host: str, port: int) -> None:
    [line] = denial_lines(Egress(denied=[Denied(host, port, 1, "not-listed")]))
    rules = Rules.build(allow=[line.rpartition("--allow ")[2]])
    assert rules.decide(host, port).allow
    assert not rules.decide(host, 22).allow and len(rules.allow) == 1


def test_a_worker_that_is_denied_a_thousand_times_fills_no_terminal() -> None:
    denied = [Denied(f"h{number}.test", 443, 1, "not-listed") for number in range(1000)]
    lines = denial_lines(Egress(denied=denied))
    assert len(lines) == TOLD + 1 and "980 other destinations" in lines[-1] and "--report" in lines[-1]
    assert len(denial_lines(Egress(denied=denied[:TOLD]))) == TOLD


def test_what_a_worker_makes_many_of_does_not_bury_what_was_moved_away() -> None:
    findings = [Finding("appeared", f"/{number}", "x") for number in range(1000)]
    moved = Finding("quarantined", "/z", "x")
    lines = closing_lines(Outcome(0, None, {}, {}, [*findings, moved], Egress(), None, ""), ["true"])
    assert lines[0] == "/z: quarantined: x" and len(lines) == TOLD + 1
    assert f"{1001 - TOLD} more findings" in lines[-1]
