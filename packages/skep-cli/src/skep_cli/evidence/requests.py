"""What a worker asked of the network, on record before it takes effect, and bounded."""

from __future__ import annotations

import errno
import os
from typing import Any

import msgspec
from skep_policy.events import Closed, Decision, EgressEvent

from skep_cli.screen.status import Status

from .audit import Log
from .state import RunFolder

MAX_DECISIONS = 250_000
"""A record is read whole to be checked, and a worker can ask for any number of names in a minute."""


class Recorder:
    """Takes the events of one launch, on the proxy's thread; `kind` is what they are called in the log."""

    def __init__(self, folder: RunFolder, log: Log, status: Status, kind: str) -> None:
        self._folder = folder
        self._log = log
        self._status = status
        self._kind = kind
        self._left = MAX_DECISIONS

    def __call__(self, event: EgressEvent) -> None:
        """The event is in the log. Raises OSError when it cannot be: what was asked is refused then."""
        if isinstance(event, Decision):
            self._count()
            self._status.decided(allow=event.verdict.allow)
        self._log.note(self._kind, egress_data(event))
        if self._log.failure:
            raise self._log.failure

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._log.note(f"{self._kind}-full", {"decisions": MAX_DECISIONS})
            self._status.warn(f"{MAX_DECISIONS:,} requests: all that a record holds; from now on each is denied")
        if self._left <= 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self._folder.log))


def egress_data(event: EgressEvent) -> dict[str, Any]:
    """An egress event for the log."""
    data = msgspec.to_builtins(event)
    data["what"] = "closed" if isinstance(event, Closed) else "decision"
    data.pop("type", None)
    return data
