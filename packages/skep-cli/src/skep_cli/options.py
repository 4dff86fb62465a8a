"""The flags of `flags.py` as click options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from . import completion
from .errors import UsageError
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


GROUPS: dict[str, tuple[str, ...]] = {
    "Network": ("--allow", "--deny", "--toolchain", "--preset"),
    "Files and the rest of the machine": (
        *("--write", "--protect", "--hide", "--grant", "--git", "--env", "--socket", "--device", "--strict"),
    ),
    "Limits": ("--wall", "--memory", "--processes", "--file-size", "--disk-free"),
}
"""Where a flag stands in the help; what is in none stands first."""


class Grouped(click.Command):
    """A command whose help has the policy flags by what they are about, and says where all of it is told."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        grouped = {name: title for title, names in GROUPS.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in GROUPS}}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (row := param.get_help_record(ctx)) is not None:
                rows[grouped.get(param.opts[-1], "Options")].append(row)
        width = max(len(name) for name, _ in (row for found in rows.values() for row in found))
        for title, found in rows.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), said) for name, said in found])
        formatter.write_paragraph()
        formatter.write_text("`skep policy schema` has what each of these is in a policy file.")


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
    """Takes the flags out of a command's keyword arguments. Raises UsageError for one that took `--` as its value."""
    flags = Flags()
    for flag in (*POLICY_FLAGS, REPORT_FLAG):
        if flag.field in values:
            value = values.pop(flag.field)
            if value == "--" or (flag.kind == "many" and "--" in value):
                raise UsageError(f"{flag.name} needs a {flag.metavar} before the --")
            setattr(flags, flag.field, list(value) if flag.kind == "many" else value)
    return flags
