"""Lines of the unified log, in the styles it has been seen in, as values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_seatbelt import Denial, advise, collect, log_command, parse_line

TAG = "skep-0123"


def ndjson(message: str) -> str:
    return json.dumps({"eventMessage": message, "senderImagePath": "/System/Library/Extensions/Sandbox.kext"})


@pytest.mark.parametrize(
    ("line", "denial"),
    [
        (
            ndjson(f"Sandbox: node(4242) deny(1) file-write-create /Users/u/x y\n{TAG}"),
            Denial("node", 4242, "file-write-create", "/Users/u/x y"),
        ),
        (
            ndjson(f"Sandbox: Python (3.13)(77) deny(1) mach-lookup com.apple.trustd.agent {TAG}"),
            Denial("Python (3.13)", 77, "mach-lookup", "com.apple.trustd.agent"),
        ),
        (
            ndjson(f"3 duplicate reports for Sandbox: sh(9) deny(1) network-outbound *:443\n{TAG}"),
            Denial("sh", 9, "network-outbound", "*:443", 3),
        ),
        (
            f"2026-01-02 03:04:05.678 E  kernel[0:1a2b] (Sandbox) Sandbox: ls(12) deny(1) file-read-data /a {TAG}",
            Denial("ls", 12, "file-read-data", "/a"),
        ),
        (
            ndjson(f"Sandbox: swift-build(5) deny(1) forbidden-sandbox-reinit\n{TAG}"),
            Denial("swift-build", 5, "forbidden-sandbox-reinit", ""),
        ),
    ],
)
def test_a_denial_of_the_run_is_read(line: str, denial: Denial):
    assert parse_line(line, tag=TAG) == denial


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Filtering the log data using ...",
        ndjson("Sandbox: node(1) deny(1) file-read-data /a\nskep-other"),
        ndjson(f"Sandbox: node(1) allow file-read-data /a {TAG}"),
        '{"eventMessage": 3}',
        "{",
    ],
)
def test_what_is_no_denial_of_the_run_is_left_out(line: str):
    assert parse_line(line, tag=TAG) is None


@given(st.text())
def test_any_line_is_a_denial_or_none(line: str):
    parse_line(line, tag=TAG)
    parse_line(f"Sandbox: x(1) deny(1) signal {line} {TAG}", tag=TAG)


def test_repeats_are_counted():
    line = ndjson(f"Sandbox: a(1) deny(1) signal {TAG}")
    again = ndjson(f"2 duplicate reports for Sandbox: a(2) deny(1) signal {TAG}")
    assert [(one.operation, one.count) for one in collect([line, again, "noise"], tag=TAG)] == [("signal", 3)]


@pytest.mark.parametrize(
    ("operation", "target", "word"),
    [
        ("file-write-create", "/tmp/x", "--write /private/tmp/x"),
        ("file-read-data", "/Users/u/.ssh/id", "--grant /Users/u/.ssh/id"),
        ("network-outbound", "/private/var/run/docker.sock", "--socket /private/var/run/docker.sock"),
        ("network-outbound", "*:443", "ignores the proxy"),
        ("mach-lookup", "com.apple.trustd.agent", "Go"),
        ("mach-lookup", "com.apple.SecurityServer", "keychain"),
        ("forbidden-sandbox-reinit", "", "inner"),
    ],
)
def test_advice_names_what_would_allow_it(operation: str, target: str, word: str):
    line = advise(Denial("tool", 1, operation, target))
    assert word in line and "\n" not in line


def test_the_log_is_asked_for_the_run():
    assert TAG in log_command(TAG)[-1] and log_command(TAG)[0].startswith("/usr/bin/")
