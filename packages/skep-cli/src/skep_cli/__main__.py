"""`skep`: the common, fully spelled `skep exec ... -- CMD` goes straight to it, everything else through click."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from .host import Host

NEVER_RAN = 125
INTERRUPTED = 130


def main(host: Host | None = None) -> None:
    """Console entry point. Exits with the status that DESIGN fixes for each command. `host` is this machine, unless a
    test says otherwise.
    """
    open_what_is_closed()
    try:
        dispatch(sys.argv[1:], host)
    except KeyboardInterrupt:  # before there was anything to forward it to
        os._exit(INTERRUPTED)
    except BrokenPipeError:  # who reads has enough; click says 1
        os._exit(1)
    except OSError as error:  # no command foresaw it: a full disk under the standard output, most often
        give_up(f"{error.filename or 'standard output'}: {error.strerror or error}")


def dispatch(words: list[str], host: Host | None = None) -> None:
    if words[:1] == ["exec"]:
        gc.disable()  # until the sandbox is being set up: what is made on the way there stays
        from .flags import POLICY_FLAGS, REPORT_FLAG, parse_simple

        simple = parse_simple(words[1:], (*POLICY_FLAGS, REPORT_FLAG))
        if simple is not None:
            from .exec import execute

            leave(execute(*simple, host))
    if words[:1] == ["run"]:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the run has handlers of its own
    from .cli import cli

    try:
        cli(prog_name="skep", obj=host)
    finally:
        sys.stdout.flush()


def leave(status: int) -> NoReturn:
    """Exit without taking the interpreter down piece by piece, which costs more than bwrap: nothing registers for it
    here.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def give_up(why: str) -> NoReturn:
    try:
        os.write(2, f"skep: {why}\n".encode(errors="replace"))
    finally:
        os._exit(NEVER_RAN)


def open_what_is_closed() -> None:
    """Descriptors 0, 1 and 2 are open: what a caller closed is /dev/null, so that no file of ours takes its number."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))


if __name__ == "__main__":
    main()
