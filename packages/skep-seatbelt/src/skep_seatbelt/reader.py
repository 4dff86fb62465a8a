"""Reads the text of a profile back into lists, symbols and strings. Written from the language, not from the printer.

A form is a list; a symbol is a `Symbol`; a string is a `str`; `#"..."` is a `Raw`; `'x` is the list `(quote x)`.
"""

from __future__ import annotations


class Symbol(str):
    """A word of the language."""

    __slots__ = ()


class Raw(str):
    """A raw string, which the language uses for regular expressions."""

    __slots__ = ()


class UnreadableProfile(ValueError):
    """Text that the profile compiler would not take."""


_ENDS = frozenset(" \t\r\n()\";'")


def read(text: str) -> list[object]:
    """The top-level forms of a profile. Raises UnreadableProfile."""
    stack: list[list[object]] = [[]]
    quotes: list[int] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character in " \t\r\n":
            at += 1
            continue
        if character == ";":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        if character == "(":
            stack.append([])
            at += 1
            continue
        if character == "'":
            quotes.append(len(stack))
            stack.append([Symbol("quote")])
            at += 1
            continue
        if character == ")":
            if len(stack) < 2:
                raise UnreadableProfile(f"a closing parenthesis too many at {at}")
            value: object = stack.pop()
            at += 1
        elif character == '"':
            value, at = _string(text, at + 1)
        elif text.startswith('#"', at):
            end = text.find('"', at + 2)
            if end < 0:
                raise UnreadableProfile("an expression without an end")
            value, at = Raw(text[at + 2 : end]), end + 1
        else:
            end = at
            while end < len(text) and text[end] not in _ENDS:
                end += 1
            value, at = Symbol(text[at:end]), end
        stack[-1].append(value)
        while quotes and quotes[-1] == len(stack) - 1:
            quotes.pop()
            quoted = stack.pop()
            stack[-1].append(quoted)
    if len(stack) != 1:
        raise UnreadableProfile("a parenthesis is not closed")
    return stack[0]


def _string(text: str, at: int) -> tuple[str, int]:
    """The string that begins at `at` (after its quote) and where reading goes on."""
    parts: list[str] = []
    while at < len(text):
        character = text[at]
        if character == '"':
            return "".join(parts), at + 1
        if character == "\\":
            at += 1
            if at >= len(text) or text[at] not in '"\\':
                raise UnreadableProfile(f"an escape that is none at {at}")
            character = text[at]
        parts.append(character)
        at += 1
    raise UnreadableProfile("a string without an end")
