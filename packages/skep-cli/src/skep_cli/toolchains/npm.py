"""npm, as `npm config` tells."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from skep_policy.errors import PolicyError

from .found import Config, Found
from .probe import Host

_SECTION = re.compile(r'^; "(\w+)" (?:config from|values)')
_SETTING = re.compile(r"^([^;=\s][^=]*?) = (.+)$")
_UNSEEN = ("user", "env")
"""Where values stand that npm does not see inside: the user's file is hidden, the environment not passed."""


class Setting(NamedTuple):
    key: str
    value: object
    section: str


def read(host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    """The registries of npm, one for each scope that has its own. Raises PolicyError."""
    npm = host.find("npm")
    assert npm is not None
    # "global" leaves out what a project says, and nothing else; nothing is to be left in the user's cache by asking
    with host.workbench({}) as scratch:
        argv = [npm, "config", "ls", "--long", "--global", "--logs-max=0", f"--cache={scratch}"]
        listed = list(parse(host.ask(argv)))
    values = {setting.key: setting for setting in listed}
    user = str(values["userconfig"].value) if "userconfig" in values else host.home(".npmrc")
    host.vouch(user, *(str(values[key].value) for key in ("globalconfig",) if key in values))
    host.seen.add(os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(npm))), "npmrc"))
    registries = {key: setting for key, setting in values.items() if key == "registry" or key.endswith(":registry")}
    if "registry" not in registries:
        raise PolicyError("npm does not say which registry it uses: `npm config get registry` has the answer?")
    variables = settings.get("npm", {})
    env: dict[str, dict[str, str]] = {section: {} for section in _UNSEEN}
    for key, value, section in listed:
        variable = "npm_config_registry" if key == "registry" else variables.get(key)
        if variable is not None and section in env and value is not None:
            env[section][variable] = value if isinstance(value, str) else json.dumps(value)
    urls = tuple(str(setting.value) for setting in registries.values())
    others = dict.fromkeys(settings.get("registry", {}).values(), str(registries["registry"].value).rstrip("/"))
    # No variable for these: a shell between skep and npm drops one with such a name.
    scopes = [f"{key}={value}\n" for key, value, section in registries.values() if key != "registry" and section in env]
    config = Config("npm_config_userconfig", "npmrc", "".join(scopes)) if scopes else None
    return [Found(urls, {**others, **env["env"]}), Found((), env["user"], (user,), config=config)]


def parse(text: str) -> Iterator[Setting]:
    """The settings in force of `npm config ls --long`, each with the section it stands in; overridden ones are comments
    there.
    """
    section = ""
    decoder = json.JSONDecoder()
    for line in text.splitlines():
        if found := _SECTION.match(line):
            section = found[1]
        elif found := _SETTING.match(line):
            try:
                value, _ = decoder.raw_decode(found[2])
            except ValueError:
                continue  # "(protected)", or a value over several lines: nothing we ask for
            yield Setting(found[1], value, section)
