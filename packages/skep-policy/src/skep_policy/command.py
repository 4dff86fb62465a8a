"""A command that a person wrote as one text: its words, split as a shell splits them, which no shell reads."""

from __future__ import annotations

import re
import shlex

from .errors import PolicyError

_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_FOR_A_SHELL = re.compile(r"[;|`]|&&|&$|\$[A-Za-z_{(]|^~/|^\d?[<>]")
"""What only a shell would act on, in a word of which no part is quoted."""


def split_command(text: str) -> list[str]:
    """The words of a command, none of them when the text has none. Raises PolicyError when a quote is left open, a
    word is for a shell, or no kernel would take it.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PolicyError(f"{text!r}: {str(error).lower()}; quote it as for a shell") from None
    bare = _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), text)
    for word in re.finditer(r"\S+", bare):
        if _FOR_A_SHELL.search(word[0]):
            there = text[word.start() : word.end()]
            remedy = "so it would be an argument as it stands; write sh -c '...'"
            raise PolicyError(f"{text!r}: no shell reads {there!r}, {remedy}")
    if any("\0" in word for word in words):
        raise PolicyError("holds a NUL character")
    return words
