"""Toolchains as layers of policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from os.path import isdir, join, normpath, realpath
from typing import Final

import msgspec
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import BUILT_IN, Effective, Layer
from skep_policy.policy import Env, Network, Policy
from skep_policy.preset import load_preset

from .found import Found, rules, without_credentials
from .memory import remembered
from .probe import Host

SCRATCH = "/tmp/.cache"
"""Below the private /tmp of the sandbox; short, since sockets are made in caches."""

READERS: Final = {"go": "golang", "jvm": "maven", "node": "npm", "python": "pypi", "rust": "cargo"}
"""The module that reads each toolchain, imported only when there is something to ask."""


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a tool of the host has a cache: `path`, or `inside` of the folder that `variable` names."""

    variable: str
    path: str
    inside: str = ""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[preset]` table of a toolchain: the programs of which one must be installed, and for each tool its settings
    with the variables that hand them on.
    """

    tools: tuple[str, ...]
    settings: dict[str, dict[str, str]] = {}
    caches: dict[str, Cache] = {}
    """By where they are below the scratch."""


def layers_for(
    names: Sequence[str], *, facts: Facts, others: Effective | None = None, project: str | None = None
) -> list[Layer]:
    """A layer for each toolchain, its registries read from the host's tools. Raises PolicyError for an unknown name, a
    tool that is not installed or does not say how it is configured.

    `others` is what the other layers say: their grants and variables win over what a toolchain would set. `project` is
    where the code that is not trusted lies: no tool is run from there, and nothing there is read.
    """
    writable = [entry.value for entry in others.of("filesystem.write")] if others else []
    bases = [entry.base or facts.cwd for entry in others.of("filesystem.write")] if others else []
    folders = [_absolute(path, base, facts) for path, base in zip(writable, bases, strict=True)]
    host = Host(facts, untrusted=[project or facts.cwd, *folders])
    return [_layer(name, host, others) for name in dict.fromkeys(names)]


def answers(name: str, host: Host) -> list[Found]:
    """What the tools of a toolchain say. Raises PolicyError when none is installed or one does not say it."""
    return _answers(name, host, _preset(name)[0])


def _preset(name: str) -> tuple[Head, Policy]:
    raw, policy = load_preset("toolchains", name, scratch=SCRATCH)
    return msgspec.convert(raw, Head), policy


def _answers(name: str, host: Host, head: Head) -> list[Found]:
    source = f"toolchain {name}"
    if not any(host.find(tool) for tool in head.tools):
        raise PolicyError(f"no {' or '.join(head.tools)} on PATH; install it or leave the toolchain out", source=source)
    try:
        return remembered(name, host, lambda: _ask(name, host, head.settings))
    except PolicyError as error:
        raise error.at(source=source) from None


def _layer(name: str, host: Host, others: Effective | None) -> Layer:
    source = f"toolchain {name}"
    if name not in READERS:
        raise PolicyError(f"unknown toolchain {name!r}; known are {', '.join(sorted(READERS))}")
    head, policy = _preset(name)
    said = _answers(name, host, head)
    allow, private = rules([url for found in said for url in found.registries], source=source)
    taken = _Taken(others, host.facts)
    variables = {name: value for name, value in policy.env.set.items() if not taken.variable(name)}
    grants = list(policy.filesystem.grant)
    for found in said:
        if taken.any_file(found.files):
            continue
        if found.unless_granted:
            raise PolicyError(found.unless_granted, source=source)
        for variable, value in found.env.items():
            if not taken.passed(variable):
                ours = policy.env.set.get(variable)
                variables[variable] = without_credentials(value) + (f" {ours}" if ours else "")
        if found.config is not None and not taken.passed(found.config.variable):
            grants.append(host.publish(found.config.name, found.config.text))
            variables[found.config.variable] = grants[-1]
    policy = msgspec.structs.replace(
        policy,
        filesystem=msgspec.structs.replace(policy.filesystem, grant=tuple(grants)),
        network=Network(allow=allow, private=private),
        env=Env(pass_=policy.env.pass_, set=variables),
    )
    return Layer(source, policy)


def caches(names: Sequence[str], facts: Facts) -> dict[str, str]:
    """The caches of the host's tools that there are, real folders by where the worker has its own."""
    found: dict[str, str] = {}
    for name in names:
        for place, cache in _preset(name)[0].caches.items():
            given = facts.environ.get(cache.variable, "")
            path = (
                join(given, cache.inside)
                if given.startswith("/")
                else _absolute(cache.path.replace("~/.cache", facts.xdg("CACHE"), 1), facts.cwd, facts)
            )
            if isdir(path):
                found[f"{SCRATCH}/{place}"] = realpath(path)
    return found


def _ask(name: str, host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    return import_module(f".{READERS[name]}", __package__).read(host, settings)


class _Taken:
    """What the other layers have said themselves."""

    def __init__(self, others: Effective | None, facts: Facts) -> None:
        self._facts = facts
        written = [entry for entry in others.entries if entry.source != BUILT_IN] if others else []
        self._passes = [entry.value for entry in written if entry.key == "env.pass"]
        self._sets = {entry.key.removeprefix("env.set.") for entry in written if entry.key.startswith("env.set.")}
        self._grants = [
            _absolute(entry.value, entry.base or facts.cwd, facts)
            for entry in written
            if entry.key == "filesystem.grant"
        ]

    def variable(self, name: str) -> bool:
        """Is it set or passed by its name?"""
        return name in self._sets or name in self._passes

    def passed(self, name: str) -> bool:
        """The same; a pattern counts too where the host has the variable: who passes `PIP_*` means the passwords."""
        return self.variable(name) or (
            name in self._facts.environ and any(fnmatchcase(name, pattern) for pattern in self._passes)
        )

    def any_file(self, paths: Sequence[str]) -> bool:
        return any(normpath(path) in self._grants for path in paths)


def _absolute(path: str, base: str, facts: Facts) -> str:
    if path == "~" or path.startswith("~/"):
        path = facts.home + path[1:]
    return normpath(join(base, path))
