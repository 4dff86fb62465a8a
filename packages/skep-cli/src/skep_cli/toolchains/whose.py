"""Whose registry it is that a command was denied, so that the toolchain can be named."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.report import Denied

from .found import rules
from .layers import READERS, answers
from .probe import Host

PROGRAMS: Final = {
    **dict.fromkeys(("npm", "npx", "pnpm", "yarn", "corepack"), "node"),
    **dict.fromkeys(("pip", "pip3", "pipx", "uv", "uvx", "poetry"), "python"),
    "cargo": "rust",
    "go": "go",
    **dict.fromkeys(("mvn", "mvnw", "gradle", "gradlew"), "jvm"),
}


def named(command: Sequence[str]) -> set[str]:
    """The toolchains whose programs stand in a command, or in the text it gives to a shell."""
    return {PROGRAMS[word] for text in command for word in re.findall(r"[\w.-]+", text) if word in PROGRAMS}


def whose(
    denied: Iterable[Denied], *, facts: Facts, writable: Sequence[str], among: Iterable[str] = READERS
) -> dict[tuple[str, int], str]:
    """Of what was denied since nothing allowed it, the toolchain whose registry it is. A tool that is not here, or does
    not say how it is configured, has none. Nothing in the folders that the command could write, `writable`, is run or
    read.
    """
    missed = [(one.host, one.port) for one in denied if one.reason == "not-listed"]
    found: dict[tuple[str, int], str] = {}
    host = Host(facts, untrusted=writable)
    for name in sorted(among) if missed else ():
        try:
            urls = [url for answer in answers(name, host) for url in answer.registries]
            allow, _ = rules(urls, source=f"toolchain {name}")
        except (PolicyError, OSError):  # a disk may be full; what the command did is told all the same
            continue
        hosts = {rule.rpartition(":")[0].strip("[]") for rule in allow}
        for place, port in missed:
            shown = f"[{place}]:{port}" if ":" in place else f"{place}:{port}"
            if shown in allow or (port == 0 and place in hosts):
                found.setdefault((place, port), name)
    return found
