"""The setup of a run: the operator's commands in the worker's workspace, before the worker, each in a boundary of its
own that may reach what the worker may not.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from skep_policy.report import LOST

from skep_cli.evidence.audit import Log
from skep_cli.evidence.audit import digest as file_digest
from skep_cli.evidence.record import Run, Setup
from skep_cli.evidence.requests import Recorder
from skep_cli.evidence.state import RunFolder, write_new
from skep_cli.screen.status import Status
from skep_cli.screen.told import egress_lines

from .ended import limit_told
from .order import Bounds, Hooks, Order, Outcome, Place
from .relay import Relay

LOG, BOUNDARY = "setup.log", "setup-boundary.txt"


class SettingUp:
    """The setup of one run. `begun` is called when its first command has been executed: the run has a record from then
    on.
    """

    def __init__(
        self, order: Order, folder: RunFolder, log: Log, run: Run, status: Status, begun: Callable[[], None]
    ) -> None:
        self._order = order
        self._folder = folder
        self._log = log
        self._run = run
        self._status = status
        self._begun = begun
        self._asked = False

    def go(
        self, bounds: Bounds, place: Place, relay: Relay, spawned: Callable[[Callable[[], None]], None]
    ) -> str | None:
        """None when every command has ended with 0, else why not; the record has what became of them. Raises OSError,
        SkepError.
        """
        try:
            for text, words in self._order.setup:
                self._status.say(f"run {self._run.id}: setup: {text}")
                self._status.rest()
                requests = Recorder(self._folder, self._log, self._status, "setup-egress")
                hooks = Hooks(self._evidence(words), spawned, self._begun, requests, self._stop)
                why = self._judged(text, bounds.setup(self._folder, place, words, relay.fd, hooks))
                if why is not None:
                    return f"the setup failed: {text}: {why}"
        finally:
            relay.finish()
        return None

    def _evidence(self, words: list[str]) -> Callable[[str], None]:
        def evidence(text: str) -> None:
            write_new(self._folder.path / BOUNDARY, text.encode(errors="surrogateescape"))
            self._log.append("setting-up", {"argv": words, "files": self._digest(BOUNDARY)})

        return evidence

    def _judged(self, text: str, done: Outcome) -> str | None:
        """Why the command failed, on record."""
        failed = done.exit_code != 0 or self._asked
        self._run.setup = Setup("failed" if failed else "passed", text, done.exit_code)
        self._run.findings += done.findings
        told = {"command": text, "exit_code": done.exit_code, "limit": done.limit}
        self._log.append("setup", told)
        if not failed:
            return None
        for line in egress_lines(done.egress):
            self._status.warn(f"run {self._run.id}: setup: {line}")
        if self._asked:
            return "you asked it to stop"
        if done.exec_error is not None:
            return os.strerror(done.exec_error)
        if done.lost:
            return LOST
        return limit_told(done.limit) if done.limit else f"exit status {done.exit_code}, see {LOG}"

    def _stop(self) -> None:
        self._asked = True
        self._status.say(f"run {self._run.id}: asked the setup to stop; once more ends it")

    def _digest(self, name: str) -> dict[str, str | None]:
        return {name: file_digest(self._folder.path / name)}
