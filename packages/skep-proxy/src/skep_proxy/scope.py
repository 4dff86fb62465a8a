"""What the connections of one listener, or of one sandbox, have in common: rules, budgets, names, and an end."""

from __future__ import annotations

from typing import Protocol

from skep_policy import Rules

from .flow import Allowance
from .synthetic import Names


class Live(Protocol):
    """Something that ends with its scope."""

    def abort(self) -> None: ...


class Scope:
    """`rules` may be replaced at any moment; what was decided stays decided."""

    __slots__ = ("_allowances", "live", "names", "rules")

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.names = Names()
        self.live: set[Live] = set()
        self._allowances: dict[str, Allowance] = {}

    def allowance(self, host: str) -> Allowance | None:
        """What may still be sent to a host, over all its ports and connections; None when there is no limit."""
        limit = self.rules.max_bytes_out
        if limit is None:
            return None
        allowance = self._allowances.get(host)
        if allowance is None:
            allowance = self._allowances[host] = Allowance(limit)
        return allowance

    def abort(self) -> None:
        """Every connection of the scope is cut."""
        for live in list(self.live):
            live.abort()
