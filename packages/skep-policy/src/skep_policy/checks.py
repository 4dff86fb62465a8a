"""Whether the values of a policy can be used, before anything of it is: what `policy check` promises.

Types are msgspec's business (`load`); here each text is parsed as what its key says it is. What depends on the machine
(does a path exist, is it a socket) is `resolve`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .errors import PolicyError
from .places import Path, dotted
from .policy import Policy
from .rules import parse_rule
from .units import parse_duration, parse_size

Check = Callable[[str], object]

MAX_PROCESSES = 1 << 22
"""The kernel's own bound on process ids."""

_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS = frozenset("0123456789")


def check(policy: Policy, *, source: str | None = None) -> None:
    """Nothing when every value can be used. Raises PolicyError with the key of the first that cannot."""
    for path, value, parse in _texts(policy):
        try:
            parse(value)
        except PolicyError as error:
            raise error.at(source=source, key=dotted(path)) from None
    processes = policy.limits.processes
    if processes is not None and not 0 < processes <= MAX_PROCESSES:
        raise PolicyError(
            f"must be at least 1 and at most {MAX_PROCESSES}, not {processes}", source=source, key="limits.processes"
        )
    for key, words in (("worker.command", policy.worker.command), ("worker.verify", policy.worker.verify)):
        if words is not None and not words:
            raise PolicyError('an empty command; write one, like ["pytest", "-q"]', source=source, key=key)


def _texts(policy: Policy) -> Iterator[tuple[Path, str, Check]]:
    """Every text of a policy with the parser that must accept it."""
    files, network, env, limits, worker = policy.filesystem, policy.network, policy.env, policy.limits, policy.worker
    lists: list[tuple[Path, tuple[str, ...], Check]] = [
        (("filesystem", "write"), files.write, _plain_path),
        (("filesystem", "protect"), files.protect, _path),
        (("filesystem", "hide"), files.hide, _path),
        (("filesystem", "grant"), files.grant, _plain_path),
        (("filesystem", "devices"), files.devices, _device),
        (("filesystem", "sockets"), files.sockets, _plain_path),
        (("network", "allow"), network.allow, parse_rule),
        (("network", "deny"), network.deny, lambda text: parse_rule(text, use="deny")),
        (("network", "private"), network.private, lambda text: parse_rule(text, use="private")),
        (("env", "pass"), env.pass_, _pass),
        (("worker", "command"), worker.command or (), _word),
        (("worker", "verify"), worker.verify or (), _word),
        (("worker", "toolchains"), worker.toolchains, _filled),
        (("verify", "network"), policy.verify.network, parse_rule),
    ]
    for path, values, parse in lists:
        for index, value in enumerate(values):
            yield (*path, index), value, parse
    for name, value in env.set.items():
        yield ("env", "set", name), name, _variable
        yield ("env", "set", name), value, _word
    scalars: list[tuple[Path, str | None, Check]] = [
        (("network", "max-bytes-out"), network.max_bytes_out, parse_size),
        (("limits", "wall"), limits.wall, parse_duration),
        (("limits", "memory"), limits.memory, parse_size),
        (("limits", "file-size"), limits.file_size, parse_size),
        (("worker", "preset"), worker.preset, _filled),
    ]
    for path, value, parse in scalars:
        if value is not None:
            yield path, value, parse


def _word(text: str) -> None:
    if "\0" in text:
        raise PolicyError("a NUL character; the kernel ends a text there")


def _filled(text: str) -> None:
    _word(text)
    if not text.strip():
        raise PolicyError("an empty text; leave the entry out")


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
