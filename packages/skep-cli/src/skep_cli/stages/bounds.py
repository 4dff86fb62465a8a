"""How the commands of a run are run: in the boundary of the policy, or, when asked for, as plain processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from skep_policy.boundary import Access, Boundary, below
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Effective
from skep_policy.resolution import resolve
from skep_policy.value import replace

from skep_cli.errors import CannotRun, NoOverlay
from skep_cli.evidence.audit import dump
from skep_cli.evidence.state import RunFolder
from skep_cli.host import NO_BACKEND_FIX, Host
from skep_cli.private import unseen
from skep_cli.refusals import said

from . import local
from .order import Hooks, Order, Outcome, Place

if TYPE_CHECKING:
    from skep_bwrap.spawn import Sandbox
    from skep_policy.launch import Launch
    from skep_seatbelt import Sandbox as Held

VERIFY_WALL = 1800.0
"""Seconds a verification may take when the policy sets no wall limit: nobody waits for one that hangs."""


@cache
def null() -> int:
    """A descriptor of /dev/null, one for the process."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


class PolicyBounds:
    """Boundaries made of one effective policy. `worker` and `verifier` block, on the main thread."""

    def __init__(
        self,
        order: Order,
        effective: Effective,
        facts: Facts,
        *,
        strict: bool,
        host: Host,
        setup: Effective | None = None,
    ) -> None:
        """`setup` is the policy of the setup, when it has one of its own. Raises CannotRun when this machine cannot
        hold such a boundary, before anything is made.
        """
        self._order = order
        self._effective = effective
        self._facts = facts
        self._strict = strict
        self._host = host
        self._setup = setup or effective
        if order.mode == "sandbox":
            self._refuse()
        # a policy that cannot be resolved is told before anything is made
        first = self.boundary(Place(order.root), ())
        self._first = [first, self.boundary(Place(order.root), (), self._setup)] if order.setup else [first]
        if order.mode == "sandbox":
            self._refuse_planted(order.git)
        self.notes: tuple[str, ...] = first.notes
        """What a person should know of the boundary, a line each."""
        if order.mode == "sandbox":
            for words in (*(words for _, words in order.setup), order.argv, order.verify or [""]):
                self.notes += tuple(unseen(first, words, facts.environ))

    @property
    def writable(self) -> list[str]:
        """Where the worker or the setup could write what stays."""
        return [root.path for made in self._first for root in made.roots]

    def boundary(self, place: Place, extra_roots: tuple[str, ...], policy: Effective | None = None) -> Boundary:
        """The boundary around a workspace that stands at the tree's own path. Raises CannotRun."""
        order = self._order
        try:
            made = resolve(
                policy or self._effective,
                facts=self._facts,
                workspace=order.root,
                mapped=None if place.overlays else {order.root: place.folder},
                overlays=place.overlays,
                extra_roots=extra_roots,
                strict=self._strict,
            )
        except PolicyError as error:
            raise CannotRun(said(error)) from None
        return replace(made, cwd=order.folder)

    def _refuse(self) -> None:
        if self._host.backend is None:
            raise CannotRun(f"{self._host.missing}; {NO_BACKEND_FIX}")
        if self._host.backend == "seatbelt":
            from skep_seatbelt import blocker

            uid = self._facts.uid if self._host.uid is None else self._host.uid
            if found := blocker(sandbox_exec=self._host.sandbox_exec, uid=uid):
                raise CannotRun(f"{found.detail}; {found.fix}")

    def _refuse_planted(self, program: str) -> None:
        """Raises CannotRun when the worker could replace what runs on the host after it."""
        folder, name = os.path.split(program)
        for path in (os.path.join(os.path.realpath(folder), name), os.path.realpath(program)):
            if any(made.access_to(path) == Access.WRITE for made in self._first):
                raise CannotRun(
                    f"{path} runs on this machine after the worker, which may write it: put another {name} before it "
                    "on PATH, or leave its folder out of --write"
                )

    def policy(self) -> bytes:
        made = self._effective
        kept = {"policy": made.policy, "entries": made.entries, "withheld": made.withheld}
        return dump({**kept, "setup": self._setup.entries} if self._order.setup else kept)

    def overlay_bwrap(self, folder: str, lower: str | None = None) -> str:
        if self._order.mode == "workspace":
            raise NoOverlay("--execution-mode workspace has no mounts of its own")
        if self._host.backend != "bwrap":
            raise NoOverlay(f"nothing can be laid over a tree on {self._host.platform}")
        from skep_bwrap.mountinfo import parse
        from skep_bwrap.probing import overlay_bwrap

        from skep_cli.session import BackendUnavailable

        root = lower or self._order.root
        if lower and self._kept_from(lower):
            raise NoOverlay("not all of it may be read")
        with open("/proc/self/mountinfo", errors="surrogateescape", newline="\n") as table:
            inside = [mount.point for mount in parse(table.read()) if mount.point.startswith(root.rstrip("/") + "/")]
        if inside:
            raise NoOverlay(f"another file system is mounted at {min(inside)}")
        try:
            return overlay_bwrap(root, folder, environ=self._facts.environ, untrusted=self.writable)
        except (BackendUnavailable, OSError) as error:
            raise NoOverlay(str(error)) from None

    def _kept_from(self, path: str) -> bool:
        """Whether the worker may not read all below a path, or the setup."""
        for made in self._first:
            if made.access_to(path) == Access.HIDDEN or any(below(rule.path, path) for rule in made.hides):
                return True
        return False

    def setup(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        return self._run(folder, place, self.boundary(place, (), self._setup), argv, output, hooks)

    def worker(
        self, folder: RunFolder, place: Place, argv: Sequence[str], env: dict[str, str], output: int, hooks: Hooks
    ) -> Outcome:
        made = self.boundary(place, (env["SKEP_RESULTS"], *place.own.values()))
        made = replace(made, env={**made.env, **place.own, **env})
        return self._run(folder, place, made, argv, output, hooks)

    def verifier(self, folder: RunFolder, place: Place, argv: Sequence[str], output: int, hooks: Hooks) -> Outcome:
        made = self.boundary(place, ())
        limits = replace(made.limits, wall=made.limits.wall or VERIFY_WALL)
        made = replace(made, rules=self._effective.verify_rules(), limits=limits)
        return self._run(folder, place, made, argv, output, hooks)

    def _run(
        self, folder: RunFolder, place: Place, made: Boundary, argv: Sequence[str], output: int, hooks: Hooks
    ) -> Outcome:
        if self._order.mode == "workspace":
            return self._run_unbounded(Path(place.folder), made, argv, output, hooks)
        return self._run_bounded(folder, place, made, argv, output, hooks)

    def _run_unbounded(
        self, workspace: Path, made: Boundary, argv: Sequence[str], output: int, hooks: Hooks
    ) -> Outcome:
        hooks.evidence(local.EVIDENCE)
        below = os.path.relpath(self._order.folder, self._order.root)

        def spawned(kill: Callable[[], None]) -> None:
            hooks.spawned(kill)
            hooks.started()

        cwd = os.path.normpath(workspace / below)
        return local.run(
            argv,
            cwd=cwd,
            env=made.env,
            stdin=null(),
            output=output,
            wall=made.limits.wall,
            spawned=spawned,
            asked=hooks.asked,
        )

    def _run_bounded(
        self, folder: RunFolder, place: Place, made: Boundary, argv: Sequence[str], output: int, hooks: Hooks
    ) -> Outcome:
        from skep_cli.session import BackendUnavailable, launch

        def compiled(what: Launch) -> None:
            hooks.evidence(what.evidence)

        def spawned(sandbox: Sandbox | Held) -> None:
            hooks.spawned(sandbox.kill)

        try:
            return launch(
                made,
                argv,
                stdin=null(),
                stdout=output,
                stderr=output,
                bwrap=place.bwrap,
                quarantine=str(folder.path / "quarantine"),
                on_event=hooks.event,
                compiled=compiled,
                spawned=spawned,
                started=hooks.started,
                asked=hooks.asked,
                always_proxy=True,
                host=self._host,
                interactive=False,
            )
        except BackendUnavailable as error:
            raise CannotRun(f"the worker did not start: {error}") from None
        except PolicyError as error:
            raise CannotRun(f"the worker did not start: {said(error)}") from None
