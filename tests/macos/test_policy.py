"""What `skep policy` says of each backend, and whether it is so."""

from __future__ import annotations

import json

import msgspec
import pytest
from skep_bwrap import keys as bwrap
from skep_policy.policy import Policy
from skep_seatbelt import keys as seatbelt

from .stage import Machine

FIELDS = {
    f"{table.encode_name}.{field.encode_name}"
    for table in msgspec.structs.fields(Policy)
    for field in msgspec.structs.fields(table.type)
}


@pytest.mark.parametrize("table", [bwrap.KEYS, seatbelt.KEYS], ids=["bwrap", "seatbelt"])
def test_every_key_of_a_policy_has_a_meaning_in_every_backend(table: dict[str, object]) -> None:
    assert set(table) == FIELDS


def test_show_says_per_key_what_each_backend_makes_of_it(machine: Machine) -> None:
    shown = json.loads(machine.skep("policy", "show", "--json").stdout)["enforcement"]
    assert set(shown) == FIELDS
    assert all(set(by) == {"bwrap", "seatbelt"} and by["bwrap"]["how"] for by in shown.values())
    assert shown["limits.memory"]["seatbelt"]["status"] == "refused"
    text = machine.skep("policy", "show", "--all").stdout
    assert "enforcement (here: seatbelt):" in text
    assert f"limits.memory\n    bwrap: differs: {bwrap.KEYS['limits.memory'].how}\n    seatbelt: refused: " in text


REFUSED = {"limits.memory": ("--memory", "1GiB")}
"""A value of each key that macOS refuses."""


@pytest.mark.parametrize("key", [key for key, made in seatbelt.KEYS.items() if made.status == "refused"])
def test_a_refused_key_is_refused_by_name_by_check_exec_and_run(machine: Machine, key: str) -> None:
    flags = REFUSED[key]
    for words in (
        ("policy", "check", *flags),
        ("exec", *flags, "--", "true"),
        ("run", ".", "x", "--worker", "true", *flags),
    ):
        done = machine.skep(*words)
        assert done.returncode == 125 and key in done.stderr, done
    assert machine.skep("policy", "check").returncode == 0
