"""Presets are policy files of the package, every one usable."""

from __future__ import annotations

import pytest
from skep_policy.errors import PolicyError
from skep_policy.preset import load_preset, preset_names


def test_every_toolchain_preset_is_a_policy_without_destinations() -> None:
    assert preset_names("toolchains") == ["go", "jvm", "node", "python", "rust"]
    for name in preset_names("toolchains"):
        head, policy = load_preset("toolchains", name, scratch="/tmp/s")
        assert head["tools"]
        assert not policy.network.allow, "which hosts there are is for the tool of this machine to say"
        assert policy.env.set["XDG_CACHE_HOME"] == "/tmp/s"
        assert not any("{" in value for value in policy.env.set.values())


def test_an_unknown_preset_is_refused_with_the_known_names() -> None:
    with pytest.raises(PolicyError, match=r"unknown name 'cobol' of toolchains; known are go, jvm, node, python, rust"):
        load_preset("toolchains", "cobol", scratch="/tmp/s")
