"""What a run is given: what to do (`Order`), and how a command is run in the boundary (`Bounds`). Values and seams
only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec
from skep_policy.boundary import Overlay
from skep_policy.events import EgressEvent
from skep_policy.report import Egress, Finding

from skep_cli.agentstate import Own
from skep_cli.evidence.record import Mode
from skep_cli.evidence.state import RunFolder
from skep_cli.git.repository import Repository

Kind = Literal["auto", "overlay", "copy"]


class Place(msgspec.Struct, frozen=True):
    """What stands at the tree's own path for one launch: a folder of the run, or, when there are `overlays`, the tree
    itself with all that is written kept apart; `bwrap` is the one that can do that.
    """

    folder: str
    overlays: dict[str, Overlay] = msgspec.field(default_factory=dict[str, Overlay])
    bwrap: str | None = None
    own: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Folders of the run the worker may write, by the variables that name them."""


class Order(msgspec.Struct, frozen=True):
    """What the operator asked for. `root` is the tree that is copied, `folder` where in it the worker starts."""

    root: str
    folder: str
    repository: Repository | None
    git: str
    task: str
    worker: list[str]
    argv: list[str]
    mode: Mode
    verify: list[str] | None
    verify_text: str | None
    results: str | None
    keep: bool
    exclude: str | None
    user_exclude: str | None
    notes: list[str]
    version: str
    setup: tuple[tuple[str, list[str]], ...] = ()
    """Commands that make the workspace ready, as text and as words."""
    workspace: Kind = "auto"
    state: tuple[Own, ...] = ()
    """What the worker finds of its own."""
    caches: dict[str, str] | None = None
    """Folders of the host to be seen elsewhere, by where; what is written there is kept apart. None: nobody asked."""
    ignore: tuple[str, ...] = ()
    """Patterns of files that are the worker's own and no part of a patch."""


class Outcome(Protocol):
    """`session.Outcome` and `local.Outcome`."""

    @property
    def exit_code(self) -> int: ...
    @property
    def limit(self) -> str | None: ...
    @property
    def layers(self) -> dict[str, bool | str]: ...
    @property
    def attestation(self) -> dict[str, bool | str | int]: ...
    @property
    def findings(self) -> list[Finding]: ...
    @property
    def egress(self) -> Egress: ...
    @property
    def exec_error(self) -> int | None: ...
    @property
    def lost(self) -> bool: ...
    @property
    def timed_out(self) -> bool: ...


class Hooks(msgspec.Struct, frozen=True):
    """What a launch tells while it goes on: the boundary's text before anything runs; that it has been spawned, with
    what ends it from any thread; that the worker has been executed; and every egress event before it takes effect.
    """

    evidence: Callable[[str], None]
    spawned: Callable[[Callable[[], None]], None]
    started: Callable[[], None]
    event: Callable[[EgressEvent], None]
    asked: Callable[[], None] | None = None
    """Called on the main thread when a signal asks the worker to stop; the next one ends it."""


class Bounds(Protocol):
    """How commands are run for this order."""

    def policy(self) -> bytes:
        """The effective policy with its sources, as kept in `policy.json`."""
        ...

    def overlay_bwrap(self, folder: str, lower: str | None = None) -> str:
        """The bwrap that can lay layers of `folder` over the tree, or over `lower`. Raises NoOverlay with the reason
        when none can.
        """
        ...

    def setup(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        """Run one command of the setup. Raises CannotRun when it never ran."""
        ...

    def worker(
        self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
    ) -> Outcome:
        """Run the worker. Raises CannotRun when it never ran."""
        ...

    def verifier(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        """Run the verification."""
        ...
