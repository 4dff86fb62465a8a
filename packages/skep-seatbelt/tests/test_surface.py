"""What the package promises to others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import skep_seatbelt

SURFACE = """
KEYS PROXY_USER SANDBOX_EXEC BackendUnavailable Check Denial Ended Outcome Probe ProfileError Proxy Sandbox Terminal
Unenforceable advise at_their_place blocker collect compile first_program in_sandbox layers listening log_command
matters new_tag new_token parse_line probe refuse remedy run settle spawn worker_environment
"""
CALLS = {
    skep_seatbelt.compile: "boundary argv tag python shim proxy terminal services reads host_sockets listen "
    "sandbox_exec",
    skep_seatbelt.probe: "sandbox_exec platform nested uid",
    skep_seatbelt.run: "boundary argv proxy stdin stdout stderr services listen sandbox_exec log temporary compiled "
    "spawned started",
    skep_seatbelt.spawn: "launch tag stdin stdout stderr terminal wall disks running folder remove user log",
}


def test_the_root_has_these_names_and_no_others() -> None:
    assert skep_seatbelt.__all__ == SURFACE.split()
    assert all(getattr(skep_seatbelt, name) is not None for name in skep_seatbelt.__all__)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_function_takes_these_by_name(call: Callable[..., Any]) -> None:
    assert list(inspect.signature(call).parameters) == CALLS[call].split()
