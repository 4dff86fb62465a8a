"""How a command of a run ended, in its record and in words. Pure."""

from __future__ import annotations

import os

from skep_policy.report import LOST, limit_remedy, limit_words

from skep_cli.evidence.record import Run

from .order import Outcome

TIMED_OUT = 124


def take_over(run: Run, outcome: Outcome, program: str) -> None:
    """The record has what became of its worker."""
    run.exit_code = TIMED_OUT if outcome.timed_out else outcome.exit_code
    run.limit, run.layers, run.attestation = outcome.limit, outcome.layers, outcome.attestation
    run.findings += outcome.findings
    run.egress = outcome.egress
    run.state = "timed-out" if outcome.timed_out else "completed" if outcome.exit_code == 0 else "failed"
    if outcome.exec_error is not None:
        run.reason = f"the worker could not be executed: {program}: {os.strerror(outcome.exec_error)}"
    elif outcome.lost:
        run.reason = LOST
    elif outcome.limit:
        run.reason = limit_told(outcome.limit)


def limit_told(limit: str) -> str:
    """What is known of a limit that was met, with the flag that lets more through."""
    return f"{limit_words(limit)}; {limit_remedy(limit)}"
