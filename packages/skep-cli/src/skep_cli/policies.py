"""Which layers there are on this machine, and the boundary they come to."""

from __future__ import annotations

import os

from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Effective, Layer, merge
from skep_policy.value import replace

from .flags import SOURCE, Flags
from .projectfile import PROJECT_FILE, project_layer


def stands(path: str) -> bool:
    """Whether something is there. What may not be looked at counts, and is refused when it is read."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def effective(flags: Flags, *, facts: Facts, project: str, own_command: bool = False) -> Effective:
    """The policy in force in the folder `project`. Raises PolicyError with the place of what is wrong.

    The project file counts in full only when exactly this text was trusted (`skep trust`). Toolchains,
    asked for by flag or by any layer that may, are a layer each below the flags. So is the preset of a worker, which
    only the flag asks for: what a policy file names is the worker of `skep run`, and grants other commands nothing.
    With `own_command` a command written in a file beats that of the preset.
    """
    layers: list[Layer] = []
    if stands(facts.config_file):
        from skep_policy.load import load_policy

        layers.append(Layer(facts.config_file, load_policy(facts.config_file), base=os.path.dirname(facts.config_file)))
    layers += project_layer(project, facts=facts)
    if flags.policy is not None:
        from skep_policy.load import load_policy

        path = os.path.join(facts.cwd, os.path.expanduser(flags.policy))
        layers.append(Layer(flags.policy, load_policy(path), base=os.path.dirname(path)))
    layers.append(Layer(SOURCE, flags.written(), base=facts.cwd))
    merged = merge(layers)
    if flags.preset is not None:
        from .presets import load

        with_command = not (own_command and merged.value("worker.command"))
        layers.insert(-1, load(flags.preset, facts).layer(with_command=with_command))
        merged = merge(layers)
    if not merged.items("worker.toolchains"):
        return merged
    known(merged, facts, "worker.toolchains")
    from .toolchains import layers_for

    try:
        asked = layers_for(merged.items("worker.toolchains"), facts=facts, others=merged, project=project)
    except PolicyError as error:
        from .refusals import Unavailable

        raise Unavailable(error.problem, source=error.source, key=error.key) from None
    return merge([*layers[:-1], *asked, layers[-1]])


def known(policy: Effective, facts: Facts, *keys: str) -> None:
    """What it names by name is there, in these keys or in all that name something. Raises PolicyError."""
    for key in keys or ("worker.preset", "worker.toolchains", "setup.toolchains"):
        for entry in policy.of(key):
            what = "preset" if key == "worker.preset" else "toolchain"
            if what == "preset":
                from .presets import names

                there = names(facts)
            else:
                from skep_policy.preset import preset_names

                there = preset_names("toolchains")
            if entry.value not in there:
                from skep_policy.load import place_of

                from .refusals import unknown

                raise place_of(unknown(what, entry.value, there), source=entry.source, path=tuple(key.split(".")))


def for_setup(flags: Flags, made: Effective, *, facts: Facts, project: str) -> Effective:
    """The policy of the setup: what the worker's layers say, without the grants of an agent, and what is for the setup
    alone. Raises PolicyError.
    """
    toolchains = [*flags.toolchain, *made.items("setup.toolchains")]
    more = replace(flags, preset=None, toolchain=toolchains, allow=[*flags.allow, *made.items("setup.network")])
    return effective(more, facts=facts, project=project)


def withheld_lines(policy: Effective, project: str) -> list[str]:
    """What the project file asked for and did not get, a line for people; empty when it got everything."""
    if not policy.withheld:
        return []
    asked = ", ".join(f"{entry.key} = {entry.value}" for entry in policy.withheld[:5])
    more = f" and {len(policy.withheld) - 5} more" if len(policy.withheld) > 5 else ""
    file = next((entry.source for entry in policy.withheld), PROJECT_FILE)
    remedy = f"`skep trust {os.path.dirname(file) or project}` shows and allows it"
    return [f"{file} widens the policy and is not trusted: {asked}{more} ignored; {remedy}"]


def unset_lines(flags: Flags, facts: Facts) -> list[str]:
    """A line for each variable that was typed to be passed and is not there."""
    names = [name for name in flags.env if "=" not in name and "*" not in name and name not in facts.environ]
    unset = [f"--env {name}: it is not set here, so nothing is passed; --env {name}=VALUE sets it" for name in names]
    return unset + absent_lines(flags, facts)


def absent_lines(flags: Flags, facts: Facts) -> list[str]:
    """A line for each path that was typed and leads nowhere, which is a slip of the fingers more often than not."""
    lines: list[str] = []
    for name, paths in (("--protect", flags.protect), ("--hide", flags.hide), ("--grant", flags.grant)):
        for path in paths:
            full = os.path.join(facts.cwd, os.path.expanduser(path))
            if not any(char in path for char in "*?") and not os.path.lexists(full):
                lines.append(f"{name} {path}: nothing is there now; is it spelt right?")
    return lines
