"""A handful of profiles as text, so that a change of one is seen in review. SKEP_UPDATE_GOLDEN=1 writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_policy.boundary import Boundary

from .boundaries import HOME, REPO, SCRATCH, boundary, hide, launch, protect, root

GOLDEN = Path(__file__).with_name("golden")

CASES: dict[str, tuple[Boundary, dict[str, object]]] = {
    "offline": (boundary(), {"proxy": None}),
    "filtered": (
        boundary(
            allow=["api.example.com", "localhost:5432"],
            protects=(protect(f"{REPO}/.git"), protect(f"{REPO}/.vscode", "absent"), protect(f"{REPO}/.envrc", "file")),
            hides=(hide(f"{HOME}/.ssh"), hide(f"{HOME}/.netrc", "file"), hide(f"{HOME}/.aws", "absent")),
            sockets=("/private/tmp/.s.PGSQL.5432",),
        ),
        {"terminal": "/dev/ttys042"},
    ),
    "open": (boundary(allow=["*"], devices=("/dev/cu.usbmodem1",)), {"proxy": None}),
    "loopback": (boundary(allow=["localhost:*"], deny=["localhost:6379"], strict=True), {}),
    "minimal": (boundary(read="minimal", reads=(protect("/Users/u/.local/share/uv"),)), {"proxy": None}),
    "inside-a-hide": (
        boundary(roots=[root(f"{HOME}/work/repo"), root(SCRATCH)], hides=(hide(f"{HOME}/work"),)),
        {"proxy": None},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_profile_is_the_one_on_record(name: str):
    one, given = CASES[name]
    text = launch(one, **given).evidence
    path = GOLDEN / f"{name}.sb"
    if os.environ.get("SKEP_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_no_record_is_without_a_case():
    assert {path.stem for path in GOLDEN.glob("*.sb")} == set(CASES)
