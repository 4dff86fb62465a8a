"""The flags of `flags.py` as click options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from . import completion
from .flags import POLICY_FLAGS, REPORT_FLAG, Flag, Flags, number
from .host import HERE, Host
from .screen.render import one_line

F = TypeVar("F", bound=Callable[..., Any])
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

PATHS = {"FILE": click.Path(), "PATH": click.Path()}


def here() -> Host:
    """The machine that the command at hand runs on."""
    context = click.get_current_context(silent=True)
    return (context and context.find_object(Host)) or HERE


class Number(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]
    """A whole number of any size a limit can have."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = number(str(value))
        if found is None:
            self.fail(f"{one_line(str(value), 30)!r} is not a number that can be used.", param, ctx)
        return found


COMPLETED: dict[str, Completer] = {"toolchain": completion.toolchains, "preset": completion.workers}


def option(flag: Flag) -> Callable[[F], F]:
    """One flag as a click option that passes its value as `flag.field`."""
    if flag.kind == "switch":
        return click.option(flag.name, flag.field, is_flag=True, help=flag.help)
    kind = Number() if flag.kind == "number" else PATHS.get(flag.metavar, click.STRING)
    return click.option(
        *(flag.name, flag.field),
        multiple=flag.kind == "many",
        metavar=flag.metavar,
        type=kind,
        help=flag.help,
        shell_complete=COMPLETED.get(flag.field),
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
