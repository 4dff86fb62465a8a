"""`skep`: the common, fully spelled `skep exec ... -- CMD` goes straight to it, everything else through click."""

from __future__ import annotations

import sys


def main() -> None:
    """Console entry point. Exits with the status that DESIGN fixes for each command."""
    words = sys.argv[1:]
    if words[:1] == ["exec"]:
        from .flags import POLICY_FLAGS, REPORT_FLAG, parse_simple

        simple = parse_simple(words[1:], (*POLICY_FLAGS, REPORT_FLAG))
        if simple is not None:
            from .exec import execute

            sys.exit(execute(*simple))
    from .cli import cli

    cli(prog_name="skep")


if __name__ == "__main__":
    main()
