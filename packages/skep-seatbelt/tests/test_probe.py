"""The probe says what is wrong, and what to do, for each way a Mac can be in the way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from skep_seatbelt import in_sandbox, probe
from skep_seatbelt.testing import install


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac is a Mac: test_mac.py")
def test_another_platform_is_unavailable_with_the_reason():
    found = probe()
    assert not found.usable and [check.id for check in found.checks] == ["platform"]
    assert "macOS" in found.checks[0].detail and found.checks[0].fix
    assert not in_sandbox()


def test_a_missing_sandbox_exec():
    found = probe(platform="darwin", sandbox_exec="/usr/bin/no-sandbox-exec", uid=501)
    assert (found.usable, found.checks[-1].id, found.checks[-1].status) == (False, "sandbox-exec", "fail")


def test_root_is_refused(tmp_path: Path):
    found = probe(platform="darwin", sandbox_exec=install(tmp_path), uid=0, nested=False)
    assert not found.usable and found.checks[-1].id == "user"


def test_nested_is_found_before_anything_is_launched(tmp_path: Path):
    found = probe(platform="darwin", sandbox_exec=install(tmp_path, "hang"), uid=501, nested=True)
    assert not found.usable and found.checks[-1].id == "nested"
    assert "already inside a sandbox" in found.checks[-1].detail


@pytest.mark.skipif(sys.platform == "darwin", reason="the stand-in is for other systems")
@pytest.mark.parametrize(
    ("mode", "id"), [("nested", "nested"), ("unreadable", "profile"), ("idle", "attestation"), ("hold", None)]
)
def test_what_the_launch_says_is_classified(tmp_path: Path, mode: str, id: str | None):
    found = probe(platform="darwin", sandbox_exec=install(tmp_path, mode), uid=501, nested=False)
    assert found.usable == (id is None), found
    failed = [check for check in found.checks if check.status == "fail"]
    assert [check.id for check in failed] == ([id] if id else [])
    assert all(check.fix or check.id == "attestation" for check in failed)
