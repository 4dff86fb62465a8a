"""Denials teach: the flag they name is the one that allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import Rules, Verdict
from skep_policy import verdict as reasons
from skep_proxy import Stats, explain_denial, metrics
from skep_proxy.denial import NOT_RECORDED, denied, flag_for, response

HOSTS = st.sampled_from(
    ["a.test", "xn--bcher-kva.example", "192.0.2.1", "2001:db8::1", "localhost", "a-b.c_d.example.com"]
)


@given(HOSTS, st.integers(1, 65535) | st.sampled_from([80, 443]))
def test_the_flag_that_is_named_allows(host: str, port: int) -> None:
    rule = flag_for(host, port).removeprefix("--allow ")
    assert Rules.build(allow=[rule]).decide(host, port).allow
    assert not Rules.build(allow=[rule]).decide("other.test", port).allow


@pytest.mark.parametrize(
    "reason",
    [
        *(reasons.NOT_LISTED, reasons.DENIED_BY_RULE, reasons.PRIVATE_ADDRESS, reasons.MALFORMED, reasons.SNI_MISMATCH),
        *(reasons.BUDGET, NOT_RECORDED, "something-new"),
    ],
)
@given(st.text(max_size=30))
def test_every_reason_is_said_in_two_plain_lines(reason: str, host: str) -> None:
    for line in explain_denial(host, 443, Verdict(False, reason, "*.example.com", "flag")):
        assert "\n" not in line and "\r" not in line and line.isprintable()
    answer = denied(host, 443, Verdict(False, reason))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"X-Skep-Reason: {reason}".encode() in head and body.startswith(b"skep: ")
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert denied(host, 443, Verdict(False, reason), head=True) == head + b"\r\n\r\n"


def test_each_says_what_to_do() -> None:
    def fix(reason: str) -> str:
        return explain_denial("db.test", 5432, Verdict(False, reason, "*.test", "user file"))[1]

    assert "--allow db.test:5432" in fix(reasons.NOT_LISTED)
    assert "deny" in fix(reasons.DENIED_BY_RULE)
    assert 'private = ["db.test"]' in fix(reasons.PRIVATE_ADDRESS)
    assert "max-bytes-out" in fix(reasons.BUDGET)
    assert (
        "'*.test' (user file)"
        in explain_denial("db.test", 1, Verdict(False, reasons.DENIED_BY_RULE, "*.test", "user file"))[0]
    )


def test_text_of_an_answer_cannot_break_out_of_it() -> None:
    answer = response(502, "bad-response", "a\r\nX-Evil: 1\r\n\r\nb\u2028")
    assert b"X-Evil" not in answer.partition(b"\r\n\r\n")[0]


def test_metrics_page() -> None:
    one = Stats(accepted=2, denied={"not-listed": 1}, bytes_in=5, failures={'a"b\n': 1})
    two = Stats(accepted=3, denied={"not-listed": 2, "malformed": 1}, bytes_out=7)
    lines = metrics.render(metrics.add(one, two)).splitlines()
    for line in (
        "skep_proxy_accepted_total 5",
        'skep_proxy_denied_total{reason="not-listed"} 3',
        'skep_proxy_denied_total{reason="malformed"} 1',
        'skep_proxy_bytes_total{direction="in"} 5',
        'skep_proxy_failures_total{reason="a\\"b\\n"} 1',
        "# TYPE skep_proxy_denied_total counter",
    ):
        assert line in lines
