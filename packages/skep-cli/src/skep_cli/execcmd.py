"""`skep exec` as click sees it: help, completion, errors."""

from __future__ import annotations

import sys
from typing import Any

import click

from .exec import execute
from .options import Grouped, collect, here, policy_flags


class ExecCommand(Grouped):
    """Says where the command begins when one of its own options was taken for ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = f"did you mean {' or '.join(error.possibilities)}? " if error.possibilities else ""
            told = (
                f"no such option {error.option_name}; {near}if it belongs to the command, write -- before the command"
            )
            raise click.UsageError(told, ctx) from None


@click.command(
    "exec",
    cls=ExecCommand,
    short_help="Run one command here, in the boundary.",
    context_settings={"ignore_unknown_options": False},
)
@policy_flags()
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(command: tuple[str, ...], **values: Any) -> None:
    """Run COMMAND in the current folder, which is the one place it may write.

    It reaches no network unless --allow says so, sees an allowlist of the environment, and leaves no process behind.
    Its input, output and terminal are its own.

    \b
    Exit status: the command's, 128+N when signal N ended it; 2 usage;
    124 the --wall limit; 125 skep could not run it; 126, 127 as in a shell.

    \b
    Examples:
        skep exec -- make test
        skep exec --allow '*.example.com' --wall 5m -- ./build.sh
        skep exec --write ~/.cache/tool --env TOKEN -- tool sync
    """
    sys.exit(execute(collect(values), list(command), here()))
