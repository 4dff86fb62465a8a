"""What the tools have said before. Asking costs from a tenth of a second to a whole one, and an agent runs a command
every few seconds.

An answer is good while everything it came from is as it was: the programs, the configuration files (those that were
absent, too), the environment, the project. It is kept where the worker can neither read nor write, without passwords.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import msgspec

from .found import Found, without_credentials
from .probe import Host

MAX_AGE = 24 * 3600
"""Seconds after which a tool is asked again in any case: what an index says about its files is not in any file here."""

_NOISE = frozenset(("_", "SHLVL", "PWD", "OLDPWD", "TERM", "COLUMNS", "LINES", "WINDOWID", "COLORTERM", "SHELL"))
"""Variables that change from call to call and that no tool takes configuration from."""


class Kept(msgspec.Struct, frozen=True):
    key: str
    when: float
    stamps: dict[str, str]
    answers: list[Found]


def remembered(name: str, host: Host, ask: Callable[[], list[Found]]) -> list[Found]:
    """The answers of a toolchain, asked for only when something has changed. Raises what `ask` raises."""
    path = os.path.join(host.neutral(), f"{name}.json")
    key = _key(name, host)
    kept = _load(path)
    if kept is not None and kept.key == key and _holds(kept, host):
        return kept.answers
    answers = [_bare(found) for found in ask()]
    if not host.incomplete:
        _save(path, Kept(key, host.now(), {seen: host.stamp(seen) for seen in sorted(host.seen)}, answers))
    return answers


def _holds(kept: Kept, host: Host) -> bool:
    young = 0 <= host.now() - kept.when < MAX_AGE
    return young and all(host.stamp(path) == stamp for path, stamp in kept.stamps.items())


def _bare(found: Found) -> Found:
    config = found.config
    return msgspec.structs.replace(
        found,
        registries=tuple(map(without_credentials, found.registries)),
        env={name: without_credentials(value) for name, value in found.env.items()},
        config=config and msgspec.structs.replace(config, text=without_credentials(config.text)),
    )


def _key(name: str, host: Host) -> str:
    environ = sorted((key, value) for key, value in host.environ.items() if key not in _NOISE)
    folder = os.path.dirname(__file__)
    ours = [host.stamp(os.path.join(folder, module)) for module in sorted(os.listdir(folder)) if module.endswith(".py")]
    told = repr((name, environ, host.untrusted, host.facts.cwd, host.facts.home, ours))
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()


def _load(path: str) -> Kept | None:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return None


def _save(path: str, kept: Kept) -> None:
    """Whole or not at all; a disk that is full costs only the time saved."""
    draft = f"{path}.{os.getpid()}"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(msgspec.json.encode(kept))
        os.replace(draft, path)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass
