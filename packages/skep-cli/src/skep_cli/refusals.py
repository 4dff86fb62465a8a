"""What a person cannot have, as a line and an exit status. Nothing here imports click: `skep exec` tells its errors
by it.

The status says what has to change. It is 2 when that is the words: a flag, a value, a name that is none, a policy file,
an operand that leads nowhere. It is 125 when the words are right and this machine lacks what they name, or cannot
enforce what they say.
"""

from __future__ import annotations

from skep_policy.errors import PolicyError

from .flags import POLICY_FLAGS, SOURCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 2
CANNOT_RUN = 125


class Unavailable(PolicyError):
    """A policy whose words can be used; this machine lacks what they name."""


def said(error: PolicyError) -> str:
    """The line for a person: a value of the command line is named by its flag, and not by its key in a file."""
    flag = flag_of(error.key) if error.source == SOURCE and error.key else None
    return str(error) if flag is None else f"{flag}: {PolicyError(error.problem)}"


def flag_of(key: str) -> str | None:
    """The flag that says what a key of a policy file says; None when there is none."""
    base = key.partition("[")[0]
    if base.startswith("env.set."):
        return "--env"
    return next((flag.name for flag in POLICY_FLAGS if flag.key == base), None)


def unknown(what: str, name: str, known: Sequence[str]) -> PolicyError:
    """A name that is none of those there are, with the nearest of them."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return PolicyError(
        f"no {what} {name!r}{f'; did you mean {near[0]}?' if near else ';'} known are {', '.join(known)}"
    )


def status_of(error: PolicyError) -> int:
    """Of a policy that could not be put together."""
    return CANNOT_RUN if isinstance(error, Unavailable) else USAGE
