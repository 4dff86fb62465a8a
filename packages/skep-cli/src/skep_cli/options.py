"""The flags of `flags.py` as click options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from .flags import POLICY_FLAGS, REPORT_FLAG, Flag, Flags
from .host import HERE, Host

F = TypeVar("F", bound=Callable[..., Any])

PATHS = {"FILE": click.Path(), "PATH": click.Path()}


def here() -> Host:
    """The machine that the command at hand runs on."""
    context = click.get_current_context(silent=True)
    return (context and context.find_object(Host)) or HERE


def option(flag: Flag) -> Callable[[F], F]:
    """One flag as a click option that passes its value as `flag.field`."""
    if flag.kind == "switch":
        return click.option(flag.name, flag.field, is_flag=True, help=flag.help)
    kind = click.INT if flag.kind == "number" else PATHS.get(flag.metavar, click.STRING)
    return click.option(
        flag.name, flag.field, multiple=flag.kind == "many", metavar=flag.metavar, type=kind, help=flag.help
    )


def policy_flags(*, report: bool = True) -> Callable[[F], F]:
    """Decorates a command with all policy flags; `collect` makes `Flags` of its keyword arguments."""
    table: Sequence[Flag] = (*POLICY_FLAGS, REPORT_FLAG) if report else POLICY_FLAGS

    def decorate(command: F) -> F:
        for flag in reversed(table):
            command = option(flag)(command)
        return command

    return decorate


def collect(values: dict[str, Any]) -> Flags:
    """Takes the flags out of a command's keyword arguments."""
    flags = Flags()
    for flag in (*POLICY_FLAGS, REPORT_FLAG):
        if flag.field in values:
            value = values.pop(flag.field)
            setattr(flags, flag.field, list(value) if flag.kind == "many" else value)
    return flags
