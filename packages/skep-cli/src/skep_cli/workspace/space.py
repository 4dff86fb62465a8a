"""What a worker works in: a copy of the user's tree, or an overlay over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skep_cli.stages.order import Place

from .snapshot import Baseline, Result


class Space(Protocol):
    """The workspace of one run, from before its worker to its verification. Every method raises OSError, SkepError."""

    @property
    def kind(self) -> str: ...

    def prepare(self, say: Callable[[str], None]) -> Place:
        """Everything the worker needs is there."""
        ...

    @property
    def before(self) -> Baseline | None:
        """The baseline, if it is known before the worker starts."""
        ...

    def ready(self) -> None:
        """The worker starts right after."""
        ...

    def set_up(self) -> None:
        """What the setup has made of ignored files is kept for the verification; the worker comes next."""
        ...

    def started(self) -> None:
        """The worker has been executed; nothing is forked from now on until it has ended."""
        ...

    def result(self) -> tuple[Baseline, Result]:
        """The baseline, and what the worker, which is gone, has left."""
        ...

    def lay_out(self, before: Baseline, after: Result) -> Place:
        """A clean workspace with the result in it, for the verification."""
        ...
