"""The probe: each layer really tried, failures named; canned bwraps for what this machine cannot show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_bwrap import probe

from .box import Box, descriptors, tagged

pytestmark = pytest.mark.sandbox


def canned(folder: Path, text: str, status: int = 1) -> dict[str, str]:
    """An environment whose bwrap says this and fails."""
    path = folder / "bin/bwrap"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat >&2 <<'E'\n{text}\nE\nexit {status}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


def test_a_host_that_works_is_said_to_layer_by_layer(either: Box) -> None:
    before = descriptors()
    found = probe(str(either.ws), environ=os.environ, bwrap=either.bwrap)
    checks = {check.id: check for check in found.checks}
    assert found.usable and checks["bwrap"].detail == either.bwrap
    assert {"sandbox", "namespaces", "capabilities", "seccomp", "writes", "network", "apart", "egress"} <= set(checks)
    assert {"limit-memory", "limit-processes"} <= set(checks)
    assert not [check for check in found.checks if check.detail.isdigit()], "a number says what it counts"
    assert int(checks["hidden"].detail.rpartition(" ")[2]) > 0, "hiding has been tried"
    assert all(check.fix or check.status == "ok" for check in found.checks)
    assert list(either.ws.iterdir()) == [] and descriptors() == before and not tagged(str(either.ws))


@pytest.mark.parametrize(
    ("text", "check", "fix"),
    [
        ("bwrap: setting up uid map: Permission denied", "apparmor", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "apparmor", "AppArmor"),
        ("bwrap: Creating new namespace failed: Operation not permitted", "user-namespaces", "sysctl"),
        ("bwrap: Failed to make / slave: Permission denied", "container-apparmor", "apparmor=unconfined"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "masked-proc", "systempaths"),
        ("bwrap: Unknown option --args", "bwrap-version", "0.8"),
        ("", "sandbox", "another bwrap"),
    ],
)
def test_a_failing_bwrap_is_named_with_its_fix(box: Box, text: str, check: str, fix: str) -> None:
    found = probe(str(box.ws), environ=canned(box.out, text))
    failed = [one for one in found.checks if one.status == "fail"]
    assert not found.usable and [one.id for one in failed] == [check] and fix in failed[0].fix


def test_no_bwrap_is_a_failure_with_install_lines(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep_bwrap.find.bundled_bwrap", lambda: None)
    found = probe(str(box.ws), environ={"PATH": str(box.out)})
    assert not found.usable and "apt install bubblewrap" in found.checks[0].fix


PROBE = """
import json, os, sys
from skep_bwrap import probe
found = probe(sys.argv[1], environ=os.environ, bwrap=sys.argv[2])
print(json.dumps([found.usable, [[c.id, c.status, c.detail, c.fix] for c in found.checks if c.status != "ok"]]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=Path.home()))
    yield folder
    shutil.rmtree(folder)


def inside(script: str, folder: Path, bwrap: str) -> str:
    """The probe's answer in a namespace where the script has changed something."""
    words = ["unshare", "-Urmpf", "--mount-proc", "sh", "-c", f'{script} && exec "$@"', "sh"]
    argv = [*words, sys.executable, "-c", PROBE, str(folder), bwrap]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    return done.stdout


def test_in_a_namespace_it_works_as_well_as_anywhere(either: Box, folder: Path) -> None:
    assert inside("true", folder, either.bwrap).startswith("[true")


def test_a_masked_proc_is_recognised_for_real(either: Box, folder: Path) -> None:
    """As an outer container masks it."""
    said = inside("mount -t tmpfs none /proc/acpi 2>/dev/null || mount -t tmpfs none /proc/fs", folder, either.bwrap)
    assert said.startswith("[false") and "masked-proc" in said and "systempaths=unconfined" in said


def test_no_user_namespaces_are_recognised_for_real(either: Box, folder: Path) -> None:
    said = inside("echo 0 > /proc/sys/user/max_user_namespaces", folder, either.bwrap)
    assert said.startswith("[false") and "user-namespaces" in said and "max_user_namespaces" in said


@pytest.mark.parametrize("disabled", [False, True])
def test_a_sandbox_around_us_that_forbids_user_namespaces_is_recognised_for_real(
    either: Box, folder: Path, disabled: bool
) -> None:
    """As another bwrap with `--disable-userns` does, whose twin without it lets ours start."""
    outer = [either.bwrap, "--unshare-user", "--dev-bind", "/", "/", *(["--disable-userns"] if disabled else [])]
    argv = [*outer, sys.executable, "-c", PROBE, str(folder), either.bwrap]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    assert done.stdout.startswith("[false" if disabled else "[true")
    assert ("user-namespaces" in done.stdout) is disabled
