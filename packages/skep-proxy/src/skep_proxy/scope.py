"""What the connections of one listener, or of one sandbox, have in common: rules, budgets, names, and an end."""

from __future__ import annotations

from skep_policy import Rules, Target
from skep_policy.rules import LOCALHOST

from .auth import Token
from .flow import Allowance
from .synthetic import Names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

BUDGETS = 16384
"""Destinations with a budget of their own. A worker can name any host below an allowed wildcard; this bounds what that
costs. Those beyond share one budget.
"""

_BEYOND = ""


if TYPE_CHECKING:

    class Live(Protocol):
        """Something that ends with its scope."""

        def abort(self) -> None: ...


class Scope:
    """`rules` may be replaced at any moment; what was decided stays decided.

    What is handed over on a listener has a scope of its own, since it ends on its own, and the listener's scope for a
    `parent`: its budgets and its limits are the listener's, however often a worker hands over.
    """

    __slots__ = ("_allowances", "connections", "handoffs", "live", "names", "parent", "root", "rules", "token")

    def __init__(self, rules: Rules, *, parent: Scope | None = None, token: Token | None = None) -> None:
        self.rules = rules
        self.parent = parent
        self.root: Scope = self if parent is None else parent
        self.token = token
        """What clients must know; None: whoever can connect may."""
        self.names = Names()
        self.live: set[Live] = set()
        self.connections = 0
        """Open ones, and what was handed over, children's included."""
        self.handoffs = 0
        self._allowances: dict[str, Allowance] = {} if parent is None else parent._allowances

    def dialled(self, address: str, port: int) -> Target:
        """What is meant by a connection to an address of the sandbox's own."""
        name = self.names.name_of(address)
        if name is not None:
            return Target(name, port, False)
        decide = self.rules.decide
        if address in LOCALHOST and (decide("localhost", port).allow or not decide(address, port).allow):
            return Target("localhost", port, False)  # which may listen at the other address on the host
        return Target(address, port, True)

    def allowance(self, host: str, port: int) -> Allowance | None:
        """What may still be sent to an allowed target, over all ports and connections; None when there is no limit.

        A wildcard or a network is one destination, as it is one rule: who holds the names below it could otherwise
        be sent any amount, a budget at a time. With `*` every host is one.
        """
        limit = self.rules.max_bytes_out
        if limit is None:
            return None
        rule = self.rules.decide(host, port).rule or ""
        key = rule.partition(":")[0] if rule.startswith("*.") else rule if "/" in rule else host
        if key not in self._allowances and len(self._allowances) >= BUDGETS:
            key = _BEYOND
        allowance = self._allowances.get(key)
        if allowance is None:
            allowance = self._allowances[key] = Allowance(limit)
        allowance.limit = limit
        return allowance

    def abort(self) -> None:
        """Every connection of the scope is cut."""
        for live in list(self.live):
            live.abort()
