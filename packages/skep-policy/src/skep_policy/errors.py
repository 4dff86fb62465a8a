"""What can be wrong with what a person wrote, as data and as one line."""

from __future__ import annotations


class PolicyError(ValueError):
    """A policy that cannot be used. `str()` is one line: where, which key, what, and what would be accepted.

    `source` is a file or the name of a flag, `line` counts from 1, `key` is dotted (`network.allow[2]`).
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
        super().__init__(": ".join(part for part in (where, key, problem) if part))


class MalformedHost(ValueError):
    """A host that has no one normal form; it is denied and never passed to a resolver."""
