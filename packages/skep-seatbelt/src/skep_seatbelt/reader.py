"""Reads the text of a profile back into lists, symbols and strings. Written from the language, not from the printer.

A form is a list; a symbol is a `Symbol`; a string is a `str`; `#"..."` is a `Raw`; `'x` is the list `(quote x)`.
"""

from __future__ import annotations

import re


class Symbol(str):
    """A word of the language."""

    __slots__ = ()


class Raw(str):
    """A raw string, which the language uses for regular expressions."""

    __slots__ = ()


class UnreadableProfile(ValueError):
    """Text that the profile compiler would not take."""


_BLANK = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[^ \t\r\n()\";']*")
_PLAIN = re.compile(r'[^"\\]*')


def read(text: str) -> list[object]:
    """The top-level forms of a profile. Raises UnreadableProfile."""
    stack: list[list[object]] = [[]]
    quotes: list[int] = []
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            at = blank.end()
            continue
        character = text[at]
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
            word = _WORD.match(text, at)
            assert word is not None
            value, at = Symbol(word[0]), word.end()
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
    while plain := _PLAIN.match(text, at):
        parts.append(plain[0])
        at = plain.end()
        if at >= len(text):
            break
        if text[at] == '"':
            return "".join(parts), at + 1
        at += 1
        if at >= len(text) or text[at] not in '"\\':
            raise UnreadableProfile(f"an escape that is none at {at}")
        parts.append(text[at])
        at += 1
    raise UnreadableProfile("a string without an end")
