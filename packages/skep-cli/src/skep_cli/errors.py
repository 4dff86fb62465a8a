"""What a user can cause, one class per exit code. `str()` is one line: what happened, to what, and the remedy."""

from __future__ import annotations

import sys

import click
from skep_policy.errors import PolicyError

from .refusals import CANNOT_RUN, USAGE, said, status_of


class SkepError(click.ClickException):
    """Something was asked for and did not come about."""

    exit_code = 1

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(" ".join(message.split("\n")))
        if exit_code is not None:
            self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue]

    def __str__(self) -> str:
        return self.message

    def show(self, file: object = None) -> None:
        """The line on stderr, surrogates of odd file names and control characters escaped."""
        from .screen.fold import columns, folded
        from .screen.render import visible

        click.echo(folded(f"skep: {visible(self.message)}", columns(sys.stderr)), err=True)


class UsageError(SkepError):
    """An operand or option that cannot be used; nothing was started."""

    exit_code = USAGE


class CannotRun(SkepError):
    """skep could not run it: the worker never started."""

    exit_code = CANNOT_RUN


def refused(error: PolicyError) -> SkepError:
    """The error of a policy that could not be put together: the words' fault, or this machine's."""
    return SkepError(said(error), exit_code=status_of(error))


class StateError(CannotRun):
    """The state folder cannot be used."""


class NoOverlay(SkepError):
    """Nothing can be laid over a tree here; the message says why."""
