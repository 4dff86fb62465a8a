"""A program with threads that runs its arguments in a sandbox by the library, from one of them."""

from __future__ import annotations

import os
import signal
import sys
import threading

from skep_bwrap import BackendUnavailable, Outcome, run
from skep_policy import Facts, Layer, merge, parse_policy, resolve
from skep_policy.report import LOST


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    text = 'limits.memory = "1GiB"\nlimits.processes = 500'
    boundary = resolve(merge([Layer("here", parse_policy(text, source="here"))]), facts=Facts.gather())
    came: list[Outcome | BackendUnavailable] = []

    def work() -> None:
        try:
            came.append(run(boundary, sys.argv[1:]))
        except BackendUnavailable as error:
            came.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(came[0], BackendUnavailable):
        print(f"skep: {came[0]}", file=sys.stderr, flush=True)
        os._exit(125)
    if came[0].lost:
        print(f"skep: {LOST}", file=sys.stderr, flush=True)
    os._exit(came[0].exit_code)


if __name__ == "__main__":
    main()
