"""Presets: policy that is data of this package, found by kind and name.

A preset file is a policy file with one table more, `[preset]`, whose keys are the business of whoever asks for that
kind. `{scratch}` in a value of `[env.set]` stands for a folder the worker has to itself.
"""

from __future__ import annotations

import os

import msgspec

from .checks import check
from .errors import PolicyError
from .policy import Policy

HEAD = "preset"


def preset_names(kind: str) -> list[str]:
    """The presets of a kind (`toolchains`), sorted."""
    return sorted(name.removesuffix(".toml") for name in os.listdir(_folder(kind)) if name.endswith(".toml"))


def load_preset(kind: str, name: str, *, scratch: str) -> tuple[dict[str, object], Policy]:
    """The `[preset]` table of a preset and its policy. Raises PolicyError that lists the names for an unknown one."""
    names = preset_names(kind)
    if name not in names:
        raise PolicyError(f"unknown name {name!r} of {kind}; known are {', '.join(names)}")
    return read_preset(os.path.join(_folder(kind), f"{name}.toml"), scratch=scratch, source=f"{kind}/{name}.toml")


def read_preset(path: str, *, scratch: str, source: str) -> tuple[dict[str, object], Policy]:
    """The same of any file. Raises PolicyError."""
    import tomllib

    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
        head = data.pop(HEAD, {})
        policy = msgspec.convert(data, Policy)
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}", source=source) from None
    except ValueError as error:  # tomllib's and msgspec's errors are
        raise PolicyError(str(error), source=source) from None
    env = msgspec.structs.replace(
        policy.env, set={variable: value.replace("{scratch}", scratch) for variable, value in policy.env.set.items()}
    )
    policy = msgspec.structs.replace(policy, env=env)
    check(policy, source=source)
    return head, policy


def _folder(kind: str) -> str:
    return os.path.join(os.path.dirname(__file__), "presets", kind)
