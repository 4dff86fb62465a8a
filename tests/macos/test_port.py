"""The port of a run's proxy on macOS, where every program of the machine shares the loopback."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from skep_cli.macos import listening
from skep_policy import Rules
from skep_policy.boundary import Boundary, Limits
from skep_proxy import Proxy


def boundary() -> Boundary:
    return Boundary(
        workspace="/w",
        cwd="/w",
        home="/w",
        uid=1000,
        gid=1000,
        roots=(),
        protects=(),
        hides=(),
        reads=(),
        watched=(),
        mapped={},
        read="host",
        devices=(),
        sockets=(),
        rules=Rules.build(["a.example.com"]),
        env={},
        limits=Limits(),
    )


@contextmanager
def one_descriptor_left() -> Generator[None]:
    """Whatever is opened after the next descriptor fails."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 64, before[1]))
    try:
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        os.close(held.pop())
        yield
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_the_port_is_the_proxys_in_both_families() -> None:
    with Proxy() as proxy:
        given = listening(proxy, boundary())
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as taken, pytest.raises(OSError, match="in use"):
                taken.bind((address, given.port))


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_a_port_that_cannot_be_had_in_both_is_none_for_a_worker() -> None:
    with Proxy() as proxy:
        listening(proxy, boundary())  # everything is loaded by now
        with one_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
            listening(proxy, boundary())
