"""Presets of workers: what each agent is started with, may reach, is told and finds of its own state.

The built-in ones are data of `skep_policy`; the user's own are files of the same form in the folder `workers` beside
their configuration file, and win over a built-in one of the same name.
"""

from __future__ import annotations

import os
import shutil

import msgspec
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Layer
from skep_policy.policy import Policy
from skep_policy.preset import load_preset, preset_names, read_preset

from .refusals import unknown

SCRATCH = "/tmp/.cache"
"""Below the private /tmp of the sandbox."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of the agent's own. Each run gets a folder with copies of what is in `keep`, and `variable` names it;
    with `inside`, the copies stand in a folder of that name in it. `beside` are files that the agent has next to its
    folder where the variable is not set, and in it where it is. `login` are those it renews by itself.
    """

    variable: str
    keep: tuple[str, ...]
    inside: str = ""
    beside: tuple[str, ...] = ()
    login: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[preset]` table of a worker. `nested` says what becomes of a sandbox it brings itself, `ignore` which new
    files in the workspace are its own and no part of a patch, in the form of a `.gitignore`; `untried` why nobody has
    seen the program run with it.
    """

    programs: tuple[str, ...]
    nested: str = "none"
    ignore: tuple[str, ...] = ()
    untried: str = ""
    state: dict[str, State] = {}


class Preset(msgspec.Struct, frozen=True):
    name: str
    source: str
    head: Head
    policy: Policy

    def found(self, facts: Facts) -> str | None:
        """Where its program is on this machine."""
        for program in self.head.programs:
            if path := shutil.which(program, path=facts.environ.get("PATH")):
                return path
        return None

    def layer(self, *, with_command: bool) -> Layer:
        """What it grants, and its command when that is wanted."""
        policy = self.policy
        if not with_command:
            policy = msgspec.structs.replace(policy, worker=msgspec.structs.replace(policy.worker, command=None))
        return Layer(f"preset {self.name}", policy)


def own_folder(facts: Facts) -> str:
    """Where the user's own presets are."""
    return os.path.join(os.path.dirname(facts.config_file), "workers")


def names(facts: Facts) -> list[str]:
    """Every preset there is, sorted."""
    try:
        own = [name.removesuffix(".toml") for name in os.listdir(own_folder(facts)) if name.endswith(".toml")]
    except OSError:
        own = []
    return sorted({*preset_names("workers"), *own})


def load(name: str, facts: Facts) -> Preset:
    """One preset. Raises PolicyError that lists the names for an unknown one."""
    path = os.path.join(own_folder(facts), f"{name}.toml")
    if "/" not in name and os.path.isfile(path):
        source = path
        head, policy = read_preset(path, scratch=SCRATCH, source=path)
    elif name in preset_names("workers"):
        source = "built-in"
        head, policy = load_preset("workers", name, scratch=SCRATCH)
    else:
        raise unknown("preset", name, names(facts))
    try:
        made = msgspec.convert(head, Head)
    except msgspec.ValidationError as error:
        raise PolicyError(str(error), source=source, key="preset") from None
    if not policy.worker.command:
        raise PolicyError("has no command", source=source, key="worker.command")
    return Preset(name, source, made, policy)
