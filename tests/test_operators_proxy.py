"""The operator's own proxy, by which what is allowed leaves."""

from __future__ import annotations

import pytest

from .escapes.worker import Worker

pytestmark = pytest.mark.sandbox

UNUSABLE = {"HTTPS_PROXY": "https://proxy.example.com:443"}
ASK = """exec 3<>/dev/tcp/127.0.0.1/3128
printf 'CONNECT a.example.com:443 HTTP/1.1\\r\\n\\r\\n' >&3
head -n 1 <&3"""


def test_one_that_cannot_be_used_stops_no_command_that_may_reach_nothing(worker: Worker) -> None:
    done = worker.run("bash", "-c", ASK, environ=UNUSABLE)
    assert "403" in done.stdout, done.stderr
    assert "denied a.example.com:443: not in the allowlist" in done.stderr


def test_one_that_cannot_be_used_stops_a_command_that_may_reach_something(worker: Worker) -> None:
    done = worker.run("bash", "-c", ASK, flags=("--allow", "b.example.com"), environ=UNUSABLE)
    assert (done.returncode, done.stdout) == (125, "")
    assert "HTTPS_PROXY: https:// upstream proxies are not supported" in done.stderr
