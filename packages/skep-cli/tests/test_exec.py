"""What a person is told at the end of `skep exec`."""

from __future__ import annotations

import pytest
from skep_cli.exec import closing_lines
from skep_cli.screen.told import TOLD, egress_lines
from skep_cli.session import Outcome
from skep_policy.report import Allowed, Denied, Egress, Finding
from skep_policy.rules import Rules


@pytest.mark.parametrize("host", ["api.example.com", "192.0.2.7", "2001:db8::1"])
@pytest.mark.parametrize("port", [443, 5432])
def test_the_flag_that_is_named_allows_what_was_denied_and_nothing_else(host: str, port: int) -> None:
    [line] = egress_lines(Egress(denied=[Denied(host, port, 1, "not-listed")]))
    rules = Rules.build(allow=[line.rpartition("--allow ")[2]])
    assert rules.decide(host, port).allow
    assert not rules.decide(host, 22).allow and len(rules.allow) == 1


def test_a_name_that_was_looked_up_is_told_without_a_port_it_may_not_have_been_meant_for() -> None:
    looked_up, asked = Denied("a.test", 0, 2, "not-listed"), Denied("a.test", 5432, 1, "not-listed")
    assert egress_lines(Egress(denied=[looked_up])) == ["denied a.test (2 times): not in the allowlist; --allow a.test"]
    assert egress_lines(Egress(denied=[looked_up, asked])) == [
        "denied a.test:5432: not in the allowlist; --allow a.test:5432"
    ]


def test_what_was_allowed_and_never_reached_is_told_with_why() -> None:
    never = Allowed("a.test", 443, 2, unreached=2, why="a.test cannot be resolved: Name or service not known")
    at_last = Allowed("b.test", 443, 2, unreached=1, why="192.0.2.1:443: Connection refused")
    line = "allowed a.test:443 (2 times) but not reached: a.test cannot be resolved: Name or service not known"
    assert egress_lines(Egress(allowed=[never, at_last])) == [line]
    many = [Allowed(f"h{number}.test", 443, 1, unreached=1, why="x") for number in range(100)]
    assert len(egress_lines(Egress(allowed=many))) == TOLD + 1


def test_a_worker_that_is_denied_a_thousand_times_fills_no_terminal() -> None:
    denied = [Denied(f"h{number}.test", 443, 1, "not-listed") for number in range(1000)]
    lines = egress_lines(Egress(denied=denied))
    assert len(lines) == TOLD + 1 and "980 other destinations" in lines[-1] and "--report" in lines[-1]
    assert len(egress_lines(Egress(denied=denied[:TOLD]))) == TOLD


@pytest.mark.parametrize(("command", "hinted"), [(["make test"], True), (["make", "a test"], False), (["make"], False)])
def test_a_whole_command_in_quotes_is_told_that_no_shell_reads_it(command: list[str], hinted: bool) -> None:
    [line] = closing_lines(Outcome(127, None, {}, {}, [], Egress(), 2, ""), command)
    assert line.startswith(f"{command[0]}: No such file or directory") and ("leave out the quotes" in line) is hinted


def test_what_a_worker_makes_many_of_does_not_bury_what_was_moved_away() -> None:
    findings = [Finding("appeared", f"/{number}", "x") for number in range(1000)]
    moved = Finding("quarantined", "/z", "x")
    lines = closing_lines(Outcome(0, None, {}, {}, [*findings, moved], Egress(), None, ""), ["true"])
    assert lines[0] == "/z: quarantined: x" and len(lines) == TOLD + 1
    assert f"{1001 - TOLD} more findings" in lines[-1]
