"""Whether the values of a policy can be used, before anything of it is: what `policy check` promises.

Types are msgspec's business (`load`); here each text is parsed as what its key says it is. What depends on the machine
(does a path exist, is it a socket) is `resolve`'s.
"""

from __future__ import annotations

from .errors import PolicyError
from .rule import parse_rule
from .units import parse_duration, parse_size
from .written import SET, Written, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .places import Path
    from .policy import Policy

    Check = Callable[[str], object]

MAX_PROCESSES = 1 << 22
"""The kernel's own bound on process ids."""

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS = frozenset("0123456789")


def check(policy: Policy | Written, *, source: str | None = None) -> None:
    """Nothing when every value can be used. Raises PolicyError with the key of the first that cannot."""
    said = written(policy)
    for path, value, parse in _texts(said):
        try:
            parse(value)
        except PolicyError as error:
            from .places import dotted

            raise error.at(source=source, key=dotted(path)) from None
    processes = said.values.get("limits.processes")
    if isinstance(processes, int) and not 0 < processes <= MAX_PROCESSES:
        raise PolicyError(
            f"must be at least 1 and at most {MAX_PROCESSES}, not {processes}", source=source, key="limits.processes"
        )
    for key in ("worker.command", "worker.verify"):
        if said.values.get(key) == ():
            raise PolicyError('an empty command; write one, like ["pytest", "-q"]', source=source, key=key)


def _texts(said: Written) -> Iterator[tuple[Path, str, Check]]:
    """Every text of a policy with the parser that must accept it."""
    for key, parse in _LISTS.items():
        items: Any = said.lists.get(key) or said.values.get(key) or ()  # a command is one value
        for index, value in enumerate(items):
            yield (*key.split("."), index), value, parse
    for key, value in said.values.items():
        if key.startswith(SET):
            name = key[len(SET) :]
            yield ("env", "set", name), name, _variable
            yield ("env", "set", name), str(value), _word
    for key, parse in _SCALARS.items():
        value = said.values.get(key)
        if value is not None:
            yield tuple(key.split(".")), str(value), parse


def _word(text: str) -> None:
    if "\0" in text:
        raise PolicyError("a NUL character; the kernel ends a text there")


def _filled(text: str) -> None:
    _word(text)
    if not text.strip():
        raise PolicyError("an empty text; leave the entry out")


def _command(text: str) -> None:
    _filled(text)
    from .command import split_command  # not for policies without a setup: it costs as much as all else here

    if not split_command(text):
        raise PolicyError(f'a command without words: {text!r}; write one, like "npm ci"')


def _path(text: str) -> None:
    _filled(text)
    if text.startswith("~") and text != "~" and not text.startswith("~/"):
        raise PolicyError(f'the home of another user: {text!r}; write the absolute path, or "~/..." for your own')
    if text.startswith("$") and (text[1:2] == "{" or text[1:2].isidentifier()):
        raise PolicyError(f'a variable, and none is expanded: {text!r}; write "~/..." or the path, or "./{text}"')


def _plain_path(text: str) -> None:
    _path(text)
    if "*" in text:
        raise PolicyError(f"a pattern where one path is meant: {text!r}; only protect and hide take patterns")


def _device(text: str) -> None:
    _plain_path(text)
    if not text.startswith("/dev/") or ".." in text.split("/"):
        raise PolicyError(f'not a device: {text!r}; write a path below /dev, like "/dev/kvm"')


def _pass(text: str) -> None:
    _filled(text)
    if "=" in text:
        name, _, value = text.partition("=")
        raise PolicyError(f"pass lists names; write {name} = {value!r} in env.set")
    _variable(text.replace("*", "X").replace("?", "X"))


def _variable(text: str) -> None:
    if not text or not _NAME.issuperset(text) or text[0] in _DIGITS:
        raise PolicyError(f"not the name of an environment variable: {text!r}; use letters, digits and underscores")


def _deny(text: str) -> None:
    parse_rule(text, use="deny")


def _private(text: str) -> None:
    parse_rule(text, use="private")


_LISTS: dict[str, Check] = {
    "filesystem.write": _plain_path,
    "filesystem.protect": _path,
    "filesystem.hide": _path,
    "filesystem.grant": _plain_path,
    "filesystem.devices": _device,
    "filesystem.sockets": _plain_path,
    "network.allow": parse_rule,
    "network.deny": _deny,
    "network.private": _private,
    "env.pass": _pass,
    "worker.command": _word,
    "worker.verify": _word,
    "worker.toolchains": _filled,
    "worker.setup": _command,
    "setup.network": parse_rule,
    "setup.toolchains": _filled,
    "verify.network": parse_rule,
}

_SCALARS: dict[str, Check] = {
    "network.max-bytes-out": parse_size,
    "limits.wall": parse_duration,
    "limits.memory": parse_size,
    "limits.file-size": parse_size,
    "limits.disk-free": parse_size,
    "worker.preset": _filled,
}
