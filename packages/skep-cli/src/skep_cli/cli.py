"""The group of commands; each is imported only when it is the one that was typed."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import click

from .errors import UsageError
from .screen.fold import folded

NARROW = 52
"""Columns below which click writes rows of 50 all the same."""
COMMANDS = {
    "run": "run",
    "exec": "execcmd",
    "demo": "demo.command",
    "doctor": "doctor",
    "workers": "workerscmd",
    "runs": "runs",
    "review": "review",
    "approve": "approve",
    "deny": "approve:deny",
    "audit": "auditcmd",
    "policy": "policycmd",
    "trust": "trust",
}
SHORT_HELP = {
    "run": "Give a task to a worker and get a verified patch back.",
    "exec": "Run one command here, in the boundary.",
    "demo": "See the whole story on a throwaway repository.",
    "doctor": "Try every layer on this machine.",
    "workers": "List the agents skep knows, and what each is granted.",
    "runs": "List the runs.",
    "review": "Look at a run before you decide.",
    "approve": "Make a branch of a run's patch.",
    "deny": "Turn a run down.",
    "audit": "Check the record of runs.",
    "policy": "Show, check and explain the policy.",
    "trust": "Let a project's skep.toml widen the policy.",
}


class Help(click.HelpFormatter):
    """Help as wide as the terminal where that is narrow, examples too: rows end with whole words."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        self._columns = shutil.get_terminal_size().columns
        narrow = self._columns - 1 if self._columns < NARROW else None
        super().__init__(indent_increment, width or narrow, max_width)

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, min(col_max, self._columns // 3), col_spacing)

    def getvalue(self) -> str:
        return "".join(f"{folded(line, self._columns)}\n" for line in super().getvalue().splitlines())


click.Context.formatter_class = Help


@contextmanager
def in_one_line() -> Generator[None]:
    """A usage error is told as every other one, with the command whose help has the answer."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        if isinstance(error, click.NoSuchOption):
            near = f"; did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ""
            said = f"no such option {error.option_name}{near}"
        else:
            said = error.format_message().rstrip(".").replace(". Did you mean", "; did you mean")
        where = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        raise UsageError(said[:1].lower() + said[1:] + where) from None


class LazyGroup(click.Group):
    """Help needs no imports, and a command needs only its own."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with in_one_line():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with in_one_line():
            return super().invoke(ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        if not sys.argv[1:]:  # a shell that completes asks by variables alone
            importlib.import_module(".completion", __package__)
        return super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        found = getattr(importlib.import_module(f".{module}", __package__), name or "command")
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = "".join(f"; did you mean {name}?" for name in get_close_matches(args[0], COMMANDS, n=1))
            ctx.fail(f"No such command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SHORT_HELP.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("skep-cli"), "-V", "--version", prog_name="skep")
def cli() -> None:
    """Run a worker nobody trusts inside the operating system's own sandbox, and get a patch back.

    \b
    First time:   skep doctor && skep demo
    A command:    skep exec -- make test
    A task:       skep run REPO "fix the failing test" --worker claude

    \b
    Exit status:  exec: the command's; run: 0 done and verified, 1 not;
                  2 usage, 124 the --wall limit, 125 skep could not run it,
                  126 and 127 as in a shell, 128+N signal N
    """
