"""What can be wrong with what a person wrote, as data and as one line."""

from __future__ import annotations


class PolicyError(ValueError):
    """A policy that cannot be used. `str()` is one line: where, which key, what, and what would be accepted.

    `source` is a file or the name of a flag, `line` counts from 1, `key` is dotted (`network.allow[2]`). Characters
    that would move a terminal's cursor are escaped: a file nobody trusts yet may be what the message quotes.
    """

    def __init__(
        self, problem: str, *, source: str | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        self.problem = problem
        self.source = source
        self.line = line
        self.key = key
        where = source or ""
        if line is not None:
            where += f":{line}"
        super().__init__(_one_line(": ".join(part for part in (where, key, problem) if part)))

    def at(self, *, source: str | None = None, line: int | None = None, key: str | None = None) -> PolicyError:
        """The same problem with a place, where it had none."""
        return PolicyError(
            self.problem,
            source=source if self.source is None else self.source,
            line=line if self.line is None else self.line,
            key=key if self.key is None else self.key,
        )


class MalformedHost(ValueError):
    """A host that has no one normal form; it is denied and never passed to a resolver."""


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
