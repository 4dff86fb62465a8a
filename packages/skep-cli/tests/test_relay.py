"""Output on its way into the log: whole, or with its middle cut out."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from skep_cli.stages.relay import Relay


def relayed(path: Path, *blocks: bytes, head: int = 100, tail: int = 20) -> bytes:
    relay = Relay(path, head=head, tail=tail)
    relay.start()
    for block in blocks:
        os.write(relay.fd, block)
    relay.finish()
    return path.read_bytes()


def test_what_fits_is_kept_whole(tmp_path: Path) -> None:
    for size in (0, 1, 99, 100, 101, 119, 120):
        content = bytes(range(32, 127)) * 2
        assert relayed(tmp_path / "log", content[:size]) == content[:size], size


@pytest.mark.parametrize("step", [1, 7, 64, 5000])
def test_what_does_not_fit_loses_its_middle_and_says_how_much(tmp_path: Path, step: int) -> None:
    content = b"".join(b"%06d" % number for number in range(1000))
    blocks = [content[at : at + step] for at in range(0, len(content), step)]
    kept = relayed(tmp_path / "log", *blocks)
    assert kept == content[:100] + b"\n[skep: 5880 bytes of output left out here]\n" + content[-20:]


def test_who_watches_gets_everything(tmp_path: Path) -> None:
    seen: list[bytes] = []
    relay = Relay(tmp_path / "log", forward=seen.append, head=4, tail=4)
    relay.start()
    for number in range(100):
        os.write(relay.fd, b"%04d" % number)
    relay.finish()
    assert b"".join(seen) == b"".join(b"%04d" % number for number in range(100))


def test_who_still_holds_the_other_end_is_not_waited_for(tmp_path: Path) -> None:
    relay = Relay(tmp_path / "log")
    relay.start()
    held = os.dup(relay.fd)
    os.write(held, b"before the end")
    relay.finish()
    os.close(held)
    assert (tmp_path / "log").read_bytes() == b"before the end"


def test_one_that_was_never_started_ends_too(tmp_path: Path) -> None:
    Relay(tmp_path / "log").finish()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_log_that_cannot_be_written_is_told_and_the_worker_is_not_stopped_by_it(tmp_path: Path) -> None:
    told: list[OSError] = []
    seen: list[bytes] = []
    relay = Relay(tmp_path / "log", forward=seen.append, on_failure=told.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        relay.start()
        for _ in range(100):
            os.write(relay.fd, b"x" * 1000)
        relay.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(told) == 1 and len(b"".join(seen)) == 100_000


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        relayed(tmp_path / "log", b"x")
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_launch_that_is_made_again_goes_on_with_the_same_relay(tmp_path: Path) -> None:
    """As a backend does when the kernel refuses a layer that can be done without."""
    relay = Relay(tmp_path / "log")
    relay.start()
    relay.start()
    os.write(relay.fd, b"said\n")
    relay.finish()
    assert (tmp_path / "log").read_bytes() == b"said\n"
