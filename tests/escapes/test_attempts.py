"""Some two hundred ways out, tried from inside by each bwrap, beside a control that gets through without a boundary."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_bwrap.find import bundled_bwrap
from skep_bwrap.seccomp import ARCHES

from . import attempts
from .cage import Attempt, Host, World, confined, unconfined

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox_starts")]

GROUPS = {
    "outside": attempts.OUTSIDE,
    "protected": attempts.PROTECTED,
    "links": attempts.LINKS,
    "hidden": attempts.HIDDEN,
    "peeling": attempts.PEELING,
    "kernel": attempts.KERNEL,
    "processes": attempts.PROCESSES,
    "sockets": attempts.SOCKETS,
    "network": attempts.NETWORK,
    "memory": attempts.MEMORY,
}


class Cage:
    """The outcomes of every attempt, group by group, each group from one sandbox on a world of its own."""

    def __init__(self, bwrap: str, names: dict[str, object]) -> None:
        self.names = names
        self.outcomes: dict[str, dict[str, str]] = {}
        self.changed: dict[str, list[str]] = {}
        for group, tried in GROUPS.items():
            base = Path(tempfile.mkdtemp(prefix=".skep-cage-", dir=Path.home()))
            world = World(base)
            before = world.snapshot()
            try:
                self.outcomes[group] = confined(bwrap, world, world.names(**names), tried)
                after = world.snapshot()
                self.changed[group] = [
                    path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
                ]
            finally:
                world.close()
                shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def host() -> Iterator[dict[str, object]]:
    host, numbers = Host(), ARCHES[platform.machine()].numbers
    yield {**host.names(), "KEYCTL": numbers["keyctl"], "ADD_KEY": numbers["add_key"]}
    host.close()


@pytest.fixture(scope="module", params=["system", "bundled"])
def cage(request: pytest.FixtureRequest, host: dict[str, object]) -> Cage:
    bwrap = shutil.which("bwrap") if request.param == "system" else bundled_bwrap()
    if bwrap is None:
        if os.environ.get("SKEP_SANDBOX_MUST_WORK"):
            pytest.fail(f"the {request.param} bwrap is not there")
        pytest.skip(f"the {request.param} bwrap is not there")
    return Cage(bwrap, host)


@pytest.fixture(scope="module")
def controls() -> dict[str, str]:
    """Outcomes without a boundary, each once whatever the number of bwraps."""
    return {}


def judge(cage: Cage, controls: dict[str, str], group: str, attempt: Attempt) -> None:
    outcome = cage.outcomes[group][attempt.name]
    assert outcome in attempt.expected
    if attempt.control == "anyone" or (attempt.control == "root" and os.geteuid() == 0):
        key = f"{group} {attempt.name}"
        if key not in controls:
            controls[key] = unconfined(cage.names, attempt)
        absent = controls[key] == outcome == "ENOENT"  # this kernel has no such file at all
        assert absent or controls[key] == "ok", "the attempt fails without a boundary too"


def each(group: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("attempt", GROUPS[group], ids=[attempt.name for attempt in GROUPS[group]])


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.guarantee("write-roots", "write-protected", "read-hidden")
def test_the_host_is_as_it_was_after_all_of_them(cage: Cage, group: str) -> None:
    assert cage.changed[group] == []


@each("outside")
@pytest.mark.guarantee("write-roots")
def test_outside_of_the_roots(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "outside", attempt)


@each("protected")
@pytest.mark.guarantee("write-protected")
def test_protected_inside_a_root(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "protected", attempt)


@each("links")
@pytest.mark.guarantee("write-links")
def test_links_out_of_a_root(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "links", attempt)


@each("hidden")
@pytest.mark.guarantee("read-hidden")
def test_hidden(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "hidden", attempt)


@each("peeling")
@pytest.mark.guarantee("write-roots", "read-hidden")
def test_mounts_cannot_be_peeled_off(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "peeling", attempt)


@each("kernel")
@pytest.mark.guarantee("write-kernel")
def test_the_kernel_of_the_host(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "kernel", attempt)


@each("processes")
@pytest.mark.guarantee("daemon-processes")
def test_processes_of_the_host_and_of_the_sandbox(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "processes", attempt)


@each("sockets")
@pytest.mark.guarantee("daemon-sockets")
def test_sockets_of_the_host(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "sockets", attempt)


@each("network")
@pytest.mark.guarantee("net-nothing")
def test_the_network(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "network", attempt)


@each("memory")
@pytest.mark.guarantee("daemon-memory")
def test_memory_of_the_host(cage: Cage, controls: dict[str, str], attempt: Attempt) -> None:
    judge(cage, controls, "memory", attempt)


def test_there_are_many_of_them() -> None:
    assert sum(len(group) for group in GROUPS.values()) >= 120
    for group in GROUPS.values():
        assert len({attempt.name for attempt in group}) == len(group)
