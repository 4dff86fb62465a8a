"""The environment the worker gets: what the policy passes of the caller's, and what it sets."""

from __future__ import annotations

from collections.abc import Callable

from .facts import Facts
from .policy import Env

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What a shell without PATH would use."""


def environment(env: Env, facts: Facts, usable: Callable[[str], bool]) -> dict[str, str]:
    """Name -> value. `PATH` keeps only absolute folders the worker can look into (`usable`), so that a lookup goes on
    to the next instead of failing at a hidden one. `HOME`, `USER` and `LOGNAME` are there even if the caller had none.
    Values that are not UTF-8 are left out: they could not be written down.
    """
    given = {"USER": facts.user, "LOGNAME": facts.user, "PATH": DEFAULT_PATH, **facts.environ, "HOME": facts.home}
    exact = {name for name in env.pass_ if "*" not in name and "?" not in name}
    patterns = [name for name in env.pass_ if name not in exact]
    passed = {
        name: value
        for name, value in given.items()
        if (name in exact or any(_matches(name, pattern) for pattern in patterns)) and _is_text(name + value)
    }
    passed["PATH"] = _search_path(passed.get("PATH", ""), usable)
    return passed | env.set


def _search_path(path: str, usable: Callable[[str], bool]) -> str:
    kept = [folder for folder in dict.fromkeys(path.split(":")) if folder.startswith("/") and usable(folder)]
    return ":".join(kept) or DEFAULT_PATH


def _matches(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
