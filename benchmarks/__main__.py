"""`python -m benchmarks`: every question, or those that are named."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from . import inside, install, proxy, run, start
from .settings import FULL, TINY, Settings
from .table import machine

QUESTIONS: dict[str, Callable[[Settings], str]] = {
    "proxy": proxy.answer,
    "start": start.answer,
    "inside": inside.answer,
    "run": run.answer,
}


def main() -> int:
    """Prints Markdown on standard output and progress on standard error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"{', '.join(QUESTIONS)} (default: all); or install"
    )
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that everything works")
    parser.add_argument("--rounds", type=int, help="how often each proxy is measured")
    parser.add_argument("--seconds", type=float, help="for each figure of a proxy")
    parser.add_argument("--starts", type=int, help="how often each program is started")
    parser.add_argument("--files", type=int, action="append", help="files of a repository; may be given several times")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="of the others, only those named so"
    )
    parser.add_argument(
        "--cache", type=Path, default=_cache(), help="for compiled and installed programs (default: %(default)s)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    arguments = parser.parse_args()
    asked = arguments.questions or list(QUESTIONS)
    if asked == ["install"]:
        return install.bring(arguments.cache)
    for name in asked:
        if name not in QUESTIONS:
            parser.error(f"no such question: {name}")
    given = {name: getattr(arguments, name) for name in ("rounds", "seconds", "starts", "files")}
    size = (TINY if arguments.tiny else FULL).but({name: value for name, value in given.items() if value is not None})
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # what was started is ended, scratch removed
    with Settings(size, cache=arguments.cache, only=arguments.only, quiet=arguments.quiet) as settings:
        print(machine(), flush=True)
        for name in asked:
            print("\n" + QUESTIONS[name](settings), flush=True)
    return 0


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home) / "skep-benchmarks"


if __name__ == "__main__":
    sys.exit(main())
