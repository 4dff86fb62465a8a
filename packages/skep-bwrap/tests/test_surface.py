"""What the package promises to others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import skep_bwrap

SURFACE = "BackendUnavailable Check Ended HostFacts Outcome Probe Sandbox compile find_bwrap probe run spawn"
CALLS = {
    skep_bwrap.compile: "boundary argv facts bwrap proxied transparent apart memory_rlimit",
    skep_bwrap.find_bwrap: "environ explicit untrusted",
    skep_bwrap.probe: "workspace environ bwrap",
    skep_bwrap.run: "boundary argv proxy bwrap stdin stdout stderr tty hand_tty ignored compiled spawned started",
    skep_bwrap.spawn: "launch proxy stdin stdout stderr tty hand_tty wall cgroups limits watched ignored",
}


def test_the_root_has_these_names_and_no_others() -> None:
    assert skep_bwrap.__all__ == SURFACE.split()
    assert all(getattr(skep_bwrap, name) is not None for name in skep_bwrap.__all__)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_function_takes_these_by_name(call: Callable[..., Any]) -> None:
    assert list(inspect.signature(call).parameters) == CALLS[call].split()
