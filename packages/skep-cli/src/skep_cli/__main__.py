"""`skep`: the common, fully spelled `skep exec ... -- CMD` goes straight to it, everything else through click."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    """Console entry point. Exits with the status that DESIGN fixes for each command."""
    words = sys.argv[1:]
    if words[:1] == ["exec"]:
        from .flags import POLICY_FLAGS, REPORT_FLAG, parse_simple

        simple = parse_simple(words[1:], (*POLICY_FLAGS, REPORT_FLAG))
        if simple is not None:
            from .exec import execute

            leave(execute(*simple))
    from .cli import cli

    cli(prog_name="skep")


def leave(status: int) -> NoReturn:
    """Exit without taking the interpreter down piece by piece, which costs more than bwrap: nothing registers for it
    here.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
