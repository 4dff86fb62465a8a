"""Which layers there are on this machine, and the boundary they come to."""

from __future__ import annotations

import os

from skep_policy.boundary import Boundary
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Effective, Layer, merge
from skep_policy.load import load_policy

from .flags import SOURCE, Flags

PROJECT_FILE = "skep.toml"


def effective(flags: Flags, *, facts: Facts, project: str) -> Effective:
    """The policy in force for the folder `project`. Raises PolicyError with the place of what is wrong.

    The project file counts in full only when exactly this text was trusted for this folder (`skep trust`). Toolchains,
    asked for by flag or by any layer that may, are a layer each below the flags.
    """
    layers: list[Layer] = []
    if os.path.lexists(facts.config_file):
        layers.append(Layer(facts.config_file, load_policy(facts.config_file), base=os.path.dirname(facts.config_file)))
    layers += project_layer(project, facts=facts)
    if flags.policy is not None:
        path = os.path.join(facts.cwd, os.path.expanduser(flags.policy))
        layers.append(Layer(flags.policy, load_policy(path), base=os.path.dirname(path)))
    layers.append(Layer(SOURCE, flags.as_policy(), base=facts.cwd))
    merged = merge(layers)
    if not merged.policy.worker.toolchains:
        return merged
    from .toolchains import layers_for

    asked = layers_for(merged.policy.worker.toolchains, facts=facts, others=merged, project=project)
    return merge([*layers[:-1], *asked, layers[-1]])


def project_layer(project: str, *, facts: Facts) -> list[Layer]:
    """The project file of a folder as a layer, none when there is none."""
    path = os.path.join(project, PROJECT_FILE)
    if not os.path.lexists(path):
        return []
    from skep_policy.load import parse_policy, read_text

    from .trust import trust_store

    text = read_text(path)
    trusted = trust_store(facts).is_trusted(os.path.realpath(project), text.encode())
    return [Layer(path, parse_policy(text, source=path), trusted=trusted, base=project)]


def resolved(policy: Effective, *, facts: Facts, workspace: str, **how: object) -> Boundary:
    """The boundary of a policy; see `skep_policy.resolve`. Raises PolicyError."""
    from skep_policy.resolution import resolve

    return resolve(policy, facts=facts, workspace=workspace, **how)  # type: ignore[arg-type]


def withheld_lines(policy: Effective, project: str) -> list[str]:
    """What the project file asked for and did not get, a line for people; empty when it got everything."""
    if not policy.withheld:
        return []
    asked = ", ".join(f"{entry.key} = {entry.value}" for entry in policy.withheld[:5])
    more = f" and {len(policy.withheld) - 5} more" if len(policy.withheld) > 5 else ""
    remedy = f"`skep trust {project}` shows and allows it"
    return [f"{PROJECT_FILE} widens the policy and is not trusted: {asked}{more} ignored; {remedy}"]


__all__ = ["PROJECT_FILE", "PolicyError", "effective", "project_layer", "resolved", "withheld_lines"]
