"""A decision is a value: enforcement and `explain` get theirs from the same function."""

from __future__ import annotations

from .value import Value


class Verdict(Value):
    """May this be reached?

    `rule` is the rule that decided, in its normal form, `source` the layer it was written in; both are None when no
    rule matched. `private` says that addresses which are not global may be dialled for this target.
    `reason` is a word of `Reason`'s vocabulary followed by nothing: it is what logs and metrics group by.
    """

    allow: bool
    reason: str
    rule: str | None = None
    source: str | None = None
    private: bool = False


# The vocabulary of `Verdict.reason`. Stable: scripts, metrics and the audit log read it.
ALLOWED = "allowed"
NOT_LISTED = "not-listed"
DENIED_BY_RULE = "denied-by-rule"
MALFORMED = "malformed"
PRIVATE_ADDRESS = "private-address"
SNI_MISMATCH = "sni-mismatch"
BUDGET = "byte-budget"
