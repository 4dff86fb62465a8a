"""Seatbelt's profile language, as far as skep speaks it: values, and the one printer that quotes.

Nothing else in this package writes a parenthesis. What cannot be written so that the profile compiler reads the same
value back (a control character, a path that is not in normal form, a port that is no port) is refused when the value is
printed, never escaped in hope.

In `"..."` only `"` and `\\` are special. `#"..."` is a regular expression in which nothing can be escaped for the
reader: a quote is refused, and whoever makes one writes what is not plain ASCII as "some characters but a slash".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal as OneOf
from typing import assert_never

import msgspec

MAX_RULE_BYTES = 16 * 1024
"""Text of one rule. The profile compiler has a limit of 64 KiB on one form; other generators split at 16 KiB."""

MAX_FILTERS = 12_000
"""Filters of one profile. `sandbox_init` has been seen to crash above some 17,700 rules."""

Operation = str
AnyPort = OneOf["*"]


class ProfileError(ValueError):
    """A value that has no spelling in a profile, or a profile larger than the system takes. `str()` is one line."""


class Literal(msgspec.Struct, frozen=True, tag=True):
    """Exactly that path."""

    path: str


class Subpath(msgspec.Struct, frozen=True, tag=True):
    """That path and everything below it."""

    path: str


class Pattern(msgspec.Struct, frozen=True, tag=True):
    """A regular expression over the path, without a quote in it."""

    regex: str


class Socket(msgspec.Struct, frozen=True, tag=True):
    """One end of an IP socket. The language knows two hosts only: this machine's loopback, and any."""

    end: OneOf["local", "remote"]
    host: OneOf["localhost", "*"]
    port: int | AnyPort


class Named(msgspec.Struct, frozen=True, tag=True):
    """An operation's other operand, by the name of its filter."""

    filter: OneOf[
        "extension",
        "global-name",
        "ipc-posix-name",
        "ipc-posix-name-prefix",
        "local-name",
        "preference-domain",
        "sysctl-name",
        "sysctl-name-prefix",
    ]
    value: str


class Word(msgspec.Struct, frozen=True, tag=True):
    """A filter whose operand is a word of the language or a number, not a string."""

    filter: OneOf["target", "vnode-type", "socket-domain", "socket-protocol"]
    value: OneOf["self", "same-sandbox", "DIRECTORY", "SYMLINK", "AF_ROUTE", "AF_SYSTEM", "2"]


class All(msgspec.Struct, frozen=True, tag=True):
    filters: tuple[Filter, ...]


class Any(msgspec.Struct, frozen=True, tag=True):
    filters: tuple[Filter, ...]


class Not(msgspec.Struct, frozen=True, tag=True):
    filter: Filter


Filter = Literal | Subpath | Pattern | Socket | Named | Word | All | Any | Not


class Rule(msgspec.Struct, frozen=True, tag=True):
    """Allow or deny `operations` when any of `filters` matches; without filters, whenever nothing else was said.

    `guarded` is for an operation that not every macOS knows: its rule stands under `(if (defined? 'OPERATION) ...)`,
    since a profile with one unknown word is refused whole. Where the kernel has no such operation it has no such check.
    """

    action: OneOf["allow", "deny"]
    operations: tuple[Operation, ...]
    filters: tuple[Filter, ...] = ()
    guarded: bool = False


class Comment(msgspec.Struct, frozen=True, tag=True):
    """A heading, in ASCII."""

    text: str


Item = Rule | Comment


def print_profile(items: Iterable[Item], *, message: str | None = None) -> str:
    """The text of a profile. `message` marks every denial in the unified log. Raises ProfileError."""
    lines = ["(version 1)"]
    filters = 0
    for item in items:
        match item:
            case Comment(text=text):
                if not text.isascii() or not text.isprintable():
                    raise ProfileError(f"a comment that is not plain text: {text!r}")
                lines += ["", f"; {text}"]
            case Rule():
                filters += sum(1 for one in item.filters for _ in _leaves(one))
                lines += _print_rule(item, message if item.action == "deny" else None)
            case _:
                assert_never(item)
    if filters > MAX_FILTERS:
        raise ProfileError(
            f"the boundary needs {filters} path filters and macOS takes about {MAX_FILTERS}; "
            "name the folders above the paths instead of the paths"
        )
    return "\n".join(lines) + "\n"


def check_path(path: str) -> str:
    """`path`, when it can be an operand: absolute, normal, no control characters, valid UTF-8. Raises ProfileError."""
    if not path.startswith("/"):
        raise ProfileError(f"a path that is not absolute: {path!r}")
    if path != "/" and any(part in ("", ".", "..") for part in path[1:].split("/")):
        raise ProfileError(f"a path that is not in normal form: {path!r}")
    return path


def _print_rule(rule: Rule, message: str | None) -> Iterator[str]:
    """The lines of a rule; of several, when its filters are longer than one rule may be."""
    if rule.guarded and len(rule.operations) != 1:
        raise ProfileError("a guarded rule has one operation")
    head = f"({rule.action} {' '.join(rule.operations)}"
    tail = f" (with message {_quote(message)}))" if message else ")"
    opening = f"(if (defined? '{rule.operations[0]})\n  " if rule.guarded else ""
    closing = ")" if rule.guarded else ""
    printed = [_print(one) for one in rule.filters]
    if not printed:
        yield f"{opening}{head}{tail}{closing}"
    while printed:
        size = 0
        count = 0
        while count < len(printed) and (not count or size + len(printed[count].encode()) <= MAX_RULE_BYTES):
            size += len(printed[count].encode())
            count += 1
        if size > 3 * MAX_RULE_BYTES:
            raise ProfileError(f"one rule of {size} bytes is longer than macOS takes; hide fewer folders above a root")
        yield opening + "\n  ".join([head, *printed[:count]]) + tail + closing
        del printed[:count]


def _print(one: Filter) -> str:
    match one:
        case Literal(path=path):
            return f"(literal {_quote(check_path(path))})"
        case Subpath(path=path):
            return f"(subpath {_quote(check_path(path))})"
        case Pattern(regex=regex):
            if '"' in regex or not regex.isascii() or not regex.isprintable():
                raise ProfileError(f"an expression that cannot be written: {regex!r}")
            return f'(regex #"{regex}")'
        case Socket(end=end, host=host, port=port):
            if port != "*" and not 0 < port < 65536:
                raise ProfileError(f"not a port: {port}")
            return f'({end} ip "{host}:{port}")'
        case Named(filter=name, value=value):
            return f"({name} {_quote(value)})"
        case Word(filter=name, value=value):
            return f"({name} {value})"
        case All(filters=filters):
            return f"(require-all {' '.join(map(_print, filters))})"
        case Any(filters=filters):
            return f"(require-any {' '.join(map(_print, filters))})"
        case Not(filter=inner):
            return f"(require-not {_print(inner)})"
        case _:
            assert_never(one)


def _quote(text: str) -> str:
    for character in text:
        if character < " " or character == "\x7f":
            raise ProfileError(f"a control character cannot stand in a profile: {text!r}")
        if "\ud800" <= character <= "\udfff":
            raise ProfileError(f"not valid UTF-8, which macOS cannot name either: {text!r}")
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _leaves(one: Filter) -> Iterator[Filter]:
    match one:
        case All(filters=filters) | Any(filters=filters):
            for inner in filters:
                yield from _leaves(inner)
        case Not(filter=inner):
            yield from _leaves(inner)
        case _:
            yield one
