"""A run, stage by stage: workspace, baseline, worker, patch, verification, seal.

Every stage leaves a record before the next begins. Up to the worker's start a failure leaves nothing behind and is exit
125; from then on whatever happens ends in a sealed record with what there is. `run.py` has said what to do (`Order`)
and how a command is run in the boundary (`Bounds`); nothing here knows flags or policies.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from skep_policy.report import Finding

from skep_cli import agentstate
from skep_cli.errors import CannotRun, NoOverlay, SkepError
from skep_cli.evidence.audit import Log, dump, now
from skep_cli.evidence.audit import digest as file_digest
from skep_cli.evidence.record import Run, Trees, Verification
from skep_cli.evidence.requests import Recorder
from skep_cli.evidence.sealing import SEALED, clear_dead, clear_scratch, seal_again
from skep_cli.evidence.state import RunFolder, Runs, guarded, trouble, write_new
from skep_cli.git import patch
from skep_cli.git.hostgit import Git, make_git_dir
from skep_cli.git.objects import Store
from skep_cli.screen.render import count
from skep_cli.screen.status import Status
from skep_cli.workspace import overlayspace
from skep_cli.workspace.copier import Copier
from skep_cli.workspace.copyspace import CopySpace
from skep_cli.workspace.snapshot import Baseline, Result
from skep_cli.workspace.space import Space

from . import verify
from .ended import take_over
from .interrupts import Ending, Interrupts
from .order import Bounds, Hooks, Order, Outcome
from .relay import Relay
from .settingup import SettingUp

ENDED = ("exit_code", "limit", "state", "layers", "attestation", "findings", "egress")
INTERRUPTED = "interrupted before the worker"


class Pipeline:
    """One run. `go` once."""

    def __init__(
        self, order: Order, bounds: Bounds, runs: Runs, status: Status, interrupts: Interrupts | None = None
    ) -> None:
        self._order = order
        self._bounds = bounds
        self._runs = runs
        self._status = status
        self._interrupts = interrupts or Interrupts()
        self._failure: OSError | None = None
        self._kill: Callable[[], None] | None = None
        self._started = False
        self._stopped = False
        self._unsaved = False
        self._laid = agentstate.Laid()
        self._caches: bool | str = "only an overlay can keep apart what is written to them"

    def go(self) -> tuple[Run, RunFolder]:
        """The sealed record of the run. Raises CannotRun, Ending when the worker never ran; nothing is left of the run
        then.
        """
        with self._interrupts.breakable():
            clear_dead(self._runs)
        folder = self._folder = self._runs.create()
        state = os.stat(self._runs.root)
        self._copier = Copier(skip=frozenset({(state.st_dev, state.st_ino)}))
        try:
            return self._in_folder(folder), folder
        finally:
            folder.lock.release()

    def _in_folder(self, folder: RunFolder) -> Run:
        log: Log | None = None
        try:
            with guarded(self._runs.root):
                log = Log(folder, on_failure=self._broken)
                with self._interrupts.breakable():
                    run = self._prepare(folder, log)
        except BaseException as error:
            if log is not None:
                log.close()
            self._runs.discard(folder)
            if isinstance(error, SkepError) and error.exit_code == SkepError.exit_code:
                raise CannotRun(error.message) from error
            raise
        outcome: Outcome | None = None
        why: str | None = None
        try:
            with guarded(self._runs.root):
                why = self._set_up(folder, log, run)
                outcome = self._work(folder, log, run) if why is None else None
        except SkepError as error:
            why = error.message
            if not self._started:
                log.close()
                self._runs.discard(folder)
                if self._interrupts.last is not None:
                    raise Ending(self._interrupts.last) from None
                raise
            if run.setup and self._interrupts.last is not None:
                why = INTERRUPTED
        if outcome and not self._started and outcome.exec_error is None and not outcome.limit:
            log.close()  # a signal ended it while the boundary was being set up
            self._runs.discard(folder)
            raise Ending(max(1, outcome.exit_code - 128))
        self._after(folder, log, run, outcome, why)
        return run

    # Before the worker

    def _prepare(self, folder: RunFolder, log: Log) -> Run:
        order = self._order
        results = order.results or str(folder.results)
        run = Run(
            *(folder.id, order.root, order.folder, order.task, order.worker, order.mode, now(), order.version),
            results=results,
            notes=order.notes,
        )
        begun = ("id", "repo", "folder", "task", "worker", "mode", "skep", "notes")
        built = msgspec.to_builtins(run)
        log.append("begun", {**{key: built[key] for key in begun}, "uid": os.geteuid()})
        write_new(folder.record, run.encode())
        try:
            os.makedirs(results, mode=0o700, exist_ok=True)
        except OSError as error:
            if order.results is None:
                raise
            raise CannotRun(
                f"--results {results}: {error.strerror}: name a folder that can be made and written"
            ) from None
        self._space, self._layer = self._workspace(folder)
        run.workspace = self._space.kind
        self._status.phase("preparing")
        if isinstance(self._layer, str):
            self._status.say(f"run {run.id}: a copy, as nothing can be laid over the tree here: {self._layer}")
        self._place = self._space.prepare(lambda text: self._status.say(f"run {run.id}: {text}"))
        if order.state:
            self._laid = agentstate.lay_out(order.state, folder.agent)
            self._place = msgspec.structs.replace(self._place, own=self._laid.variables)
        if self._space.before:
            self._baseline(log, run, self._space.before)
        self._put("policy.json", self._bounds.policy())
        log.append("policy", {"files": self._files("policy.json")})
        self._space.ready()
        return run

    def _workspace(self, folder: RunFolder) -> tuple[Space, bool | str]:
        """The workspace, and whether it is an overlay or why it is none."""
        order, repo = self._order, self._order.repository
        object_format = repo.object_format if repo else "sha1"
        git = make_git_dir(order.git, folder.git, object_format=object_format, borrow=repo.objects if repo else None)
        if repo and os.path.exists(os.path.join(repo.common_dir, "shallow")):
            write_new(folder.git / "shallow", Path(repo.common_dir, "shallow").read_bytes())
        self._store = Store(git, object_format)
        why: bool | str = False
        if order.workspace != "copy":
            try:
                bwrap = overlayspace.find_bwrap(order, self._bounds, folder, self._runs.root)
                caches, self._caches = overlayspace.warm(order, self._bounds, folder)
                return overlayspace.OverlaySpace(order, folder, self._copier, self._store, bwrap, caches), True
            except NoOverlay as error:
                why = error.message
                if order.workspace == "overlay":
                    raise CannotRun(f"no overlay over {order.root}: {why}; --workspace copy works everywhere") from None
        return CopySpace(order, folder, self._copier, self._store), why

    def _baseline(self, log: Log, run: Run, before: Baseline) -> None:
        """The baseline is on record: before the worker for a copy, after it for an overlay."""
        repo = self._order.repository
        run.trees = Trees(
            self._store.object_format,
            bool(repo),
            repo.head if repo else None,
            repo.branch if repo else None,
            before.tree,
        )
        self._put("git/skep.json", dump({"kept": before.kept, "foreign": before.foreign}))
        run.findings += before.findings
        log.append(
            "baseline",
            {
                **msgspec.to_builtins(run.trees),
                "workspace": run.workspace,
                "files": self._files("git/skep.json"),
                "tracked": len(before.entries),
                "skipped": msgspec.to_builtins(before.findings),
            },
        )

    def _put(self, name: str, content: bytes) -> None:
        write_new(self._folder.path / name, content)

    def _files(self, *names: str) -> dict[str, str | None]:
        return {name: file_digest(self._folder.path / name) for name in names}

    # The setup and the worker

    def _set_up(self, folder: RunFolder, log: Log, run: Run) -> str | None:
        """None when the workspace is ready, else why the worker cannot start."""
        if not self._order.setup:
            return None

        relay = Relay(folder.path / "setup.log", forward=self._status.show, on_failure=self._broken)

        def begun() -> None:
            self._started = True
            relay.start()

        setting_up = SettingUp(self._order, folder, log, run, self._status, begun)
        why = setting_up.go(self._bounds, self._place, relay, self._spawned("setup"))
        self._kill = None
        if why is not None:
            return why
        try:
            with self._interrupts.breakable():
                if self._order.verify:
                    self._space.set_up()
        except Ending:
            return INTERRUPTED
        return None

    def _spawned(self, phase: str) -> Callable[[Callable[[], None]], None]:
        """Called when something has been started, with what ends it."""

        def spawned(kill: Callable[[], None]) -> None:
            self._kill = kill
            self._status.phase(phase)
            if self._failure or self._interrupts.last is not None:
                kill()

        return spawned

    def _work(self, folder: RunFolder, log: Log, run: Run) -> Outcome:
        argv = self._order.argv
        env = {"SKEP_TASK": run.task, "SKEP_RESULTS": run.results, "SKEP_RUN": run.id}
        relay = Relay(folder.path / "worker.log", forward=self._status.show, on_failure=self._broken)

        def evidence(text: str) -> None:
            self._put("boundary.txt", text.encode(errors="surrogateescape"))
            log.append("starting", {"mode": run.mode, "argv": argv, "files": self._files("boundary.txt")})

        def started() -> None:
            self._started = True
            self._space.started()
            log.note("started", {})
            silent = "" if argv != self._order.worker else " (no {task} in its command: it finds the task in SKEP_TASK)"
            self._status.say(f"run {run.id}: worker started: {argv[0]}{silent}")
            relay.start()  # not before: what it says stands below that line

        def asked() -> None:
            run.reason = "you asked the worker to stop"
            self._status.say(f"run {run.id}: asked the worker to stop, and its patch is taken; once more ends it")

        self._status.rest()
        hooks = Hooks(evidence, self._spawned("worker"), started, Recorder(folder, log, self._status, "egress"), asked)
        try:
            return self._bounds.worker(folder, self._place, argv, env, relay.fd, hooks)
        finally:
            self._kill = None
            relay.finish()

    def _broken(self, error: OSError) -> None:
        """On any thread: the record cannot be kept, so the worker must not go on."""
        self._failure = self._failure or error
        if self._kill is not None:
            self._kill()

    # After the worker

    def _after(self, folder: RunFolder, log: Log, run: Run, outcome: Outcome | None, why: str | None) -> None:
        try:
            if outcome is None:
                setup = run.setup
                run.exit_code = setup.exit_code if setup and setup.outcome == "failed" else CannotRun.exit_code
                raise SkepError(why or "the worker came to no end")
            take_over(run, outcome, self._order.argv[0])
            run.findings += [Finding("login", path, agentstate.RENEWED) for path in agentstate.renewed(self._laid)]
            run.layers = {**run.layers, "overlay": self._layer}
            if self._order.caches is not None:
                run.layers["caches"] = self._caches
            if self._failure:
                raise self._failure
            ended = {key: msgspec.to_builtins(getattr(run, key)) for key in ENDED}
            log.append("ended", ended)
            self._status.say(f"run {run.id}: worker {run.state}, exit status {run.exit_code}")
            before, after = self._patch(folder, log, run)
            if self._order.verify:
                self._verify(folder, log, run, before, after)
        except OSError as error:
            self._give_up(run, trouble(error, self._runs.root).message)
        except SkepError as error:
            self._give_up(run, error.message)
        except Ending:
            self._unsaved = False
            self._give_up(run, "interrupted")
        if run.patch is None:
            folder.patch.unlink(missing_ok=True)
        self._seal(folder, log, run)

    def _give_up(self, run: Run, why: str) -> None:
        run.state = "failed"
        run.reason = why
        self._status.warn(f"run {run.id}: {why}")

    def _patch(self, folder: RunFolder, log: Log, run: Run) -> tuple[Baseline, Result]:
        self._status.phase("patch")
        self._unsaved = True
        with self._interrupts.breakable(warn=self._going_on(run)):
            before, after = self._space.result()
        if run.trees is None:
            self._baseline(log, run, before)
        assert run.trees is not None
        run.trees.result = after.tree
        run.findings += after.findings
        run.files_changed = [change.path for change in after.changes]
        if after.changes:
            with self._interrupts.breakable(warn=self._going_on(run)):
                patch.write_patch(Git(self._order.git, folder.git), before.tree, after.tree, folder.patch)
            run.patch = str(folder.patch)
        self._unsaved = False
        changed = {
            "tree": after.tree,
            "files_changed": run.files_changed,
            "findings": msgspec.to_builtins(after.findings),
        }
        log.append("patch", {**changed, "files": self._files("patch.diff", "worker.log")})
        self._status.say(f"run {run.id}: {count(len(run.files_changed), 'file')} changed")
        return before, after

    def _going_on(self, run: Run) -> Callable[[], None]:
        return lambda: self._status.say(f"run {run.id}: taking the patch, and no more; once more gives it up")

    def _verify(self, folder: RunFolder, log: Log, run: Run, before: Baseline, after: Result) -> None:
        order = self._order
        assert order.verify is not None and order.verify_text is not None
        unavailable = partial(Verification, "unavailable", order.verify_text, None)
        self._status.say(f"run {run.id}: verifying: {order.verify_text}")
        relay: Relay | None = None
        self._status.phase("verification")
        try:
            with self._interrupts.breakable():
                place = self._space.lay_out(before, after)
            self._status.rest()
            relay = Relay(folder.path / "verify.log", forward=self._status.show)
            requests = Recorder(folder, log, self._status, "verify-egress")
            spawned = self._spawned("verification")
            hooks = Hooks(lambda text: None, spawned, relay.start, requests, self._stop_verifying)
            done = self._bounds.verifier(folder, place, order.verify, relay.fd, hooks)
            run.verification = verify.judged(order.verify_text, order.verify[0], done)
            if self._interrupts.last is not None or self._stopped:
                run.verification = unavailable("interrupted")
        except Ending:
            run.verification = unavailable("interrupted")
        except (OSError, SkepError) as error:
            run.verification = unavailable(verify.explain(error))
        finally:
            self._kill = None
            if relay is not None:
                relay.finish()
        found = run.verification
        log.append("verification", {**msgspec.to_builtins(found), "files": self._files("verify.log")})
        why = f" ({found.detail})" if found.detail else ""
        self._status.say(f"run {run.id}: verification {found.outcome}{why}")

    def _stop_verifying(self) -> None:
        self._stopped = True
        self._status.say(f"run {self._folder.id}: asked the verification to stop; once more ends it")

    def _seal(self, folder: RunFolder, log: Log, run: Run) -> None:
        """The last record has every digest, and scratch is gone: then a full disk has room again. What could not be
        made a patch is kept, if there is room for the record.
        """
        self._status.close()
        for problem in clear_scratch(folder, keep=self._order.keep or self._unsaved):
            self._status.warn(f"run {run.id}: {problem}")
        run.ended = now()
        if not self._failure:
            try:
                sealed = {"state": run.state, "reason": run.reason, "files": self._files(*SEALED)}
                log.keep("run.json", run.encode(), "sealed", sealed)
            except OSError as error:
                self._failure = error
        log.close()
        if self._failure:
            if run.reason is None:
                self._give_up(run, trouble(self._failure, self._runs.root).message)
            if self._unsaved:
                clear_scratch(folder)
            seal_again(folder, run)
        elif self._unsaved:
            self._status.warn(f"run {run.id}: what the worker wrote is kept in {folder.workspace}")
