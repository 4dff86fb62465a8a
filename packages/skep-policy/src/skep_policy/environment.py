"""The environment the worker gets: what the policy passes of the caller's, and what it sets."""

from __future__ import annotations

from .written import SET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .facts import Facts
    from .layers import Effective

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
"""What a shell without PATH would use."""


def environment(effective: Effective, facts: Facts, usable: Callable[[str], bool]) -> dict[str, str]:
    """Name -> value. `PATH` keeps only absolute folders the worker can look into (`usable`), so that a lookup goes on
    to the next instead of failing at a hidden one. `HOME`, `USER` and `LOGNAME` are there even if the caller had none.
    Values that are not UTF-8 are left out: they could not be written down.
    """
    given = {"USER": facts.user, "LOGNAME": facts.user, "PATH": DEFAULT_PATH, **facts.environ, "HOME": facts.home}
    wanted = effective.items("env.pass")
    exact = {name for name in wanted if "*" not in name and "?" not in name}
    patterns = [name for name in wanted if name not in exact]
    passed = {
        name: value
        for name, value in given.items()
        if (name in exact or any(_matches(name, pattern) for pattern in patterns)) and _is_text(name + value)
    }
    passed["PATH"] = _search_path(passed.get("PATH", ""), usable)
    values = effective.written.values
    return passed | {key[len(SET) :]: str(value) for key, value in values.items() if key.startswith(SET)}


def _search_path(path: str, usable: Callable[[str], bool]) -> str:
    kept = [folder for folder in dict.fromkeys(path.split(":")) if folder.startswith("/") and usable(folder)]
    return ":".join(kept) or DEFAULT_PATH


def _matches(name: str, pattern: str) -> bool:
    """`*` is any characters and `?` one; only the last star needs to be tried again when what follows does not fit."""
    at = used = 0
    star = resume = -1
    while at < len(name):
        if used < len(pattern) and pattern[used] == "*":
            star, resume = used, at
            used += 1
        elif used < len(pattern) and pattern[used] in ("?", name[at]):
            at += 1
            used += 1
        elif star >= 0:
            resume += 1
            at, used = resume, star + 1
        else:
            return False
    return not pattern[used:].strip("*")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
