"""`skep run`: a task, a worker, and what came of it."""

from __future__ import annotations

import errno
import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec
from skep_policy.boundary import Boundary
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Effective
from skep_policy.preset import preset_names
from skep_policy.value import replace

from . import agentstate, completion, policies, presets, workers
from .endpoints import shut
from .errors import CannotRun, SkepError, UsageError, refused
from .evidence.record import Mode, Run, one_json
from .evidence.state import RunFolder, Runs, gather
from .flags import Flags
from .git import repository
from .git.hostgit import find_git
from .options import Grouped, collect, here, policy_flags
from .refusals import unknown
from .reportfile import Before, ReportFile
from .screen.status import Status
from .screen.told import egress_lines
from .stages.bounds import PolicyBounds
from .stages.ended import TIMED_OUT
from .stages.interrupts import Ending, Interrupts
from .stages.order import Kind, Order, Place
from .stages.pipeline import Pipeline
from .workers import split, with_task

LEFT_BEHIND = ("__pycache__/",)
"""What a run of the code leaves and nobody commits, whether the project's own `.gitignore` has it or not."""

MAX_WORD = 131_072
"""Bytes of a word or a variable that Linux hands to a program, the NUL at its end included (MAX_ARG_STRLEN)."""


@click.command("run", cls=Grouped, short_help="Give a task to a worker and get a verified patch back.")
@click.argument("repo", shell_complete=completion.folders)
@click.argument("task")
@click.option(
    "--worker",
    metavar="WORKER",
    shell_complete=completion.workers,
    help="A preset (`skep workers`), or a 'CMD {task}'.",
)
@click.option(
    "--execution-mode",
    "mode",
    type=click.Choice(["sandbox", "workspace"]),
    default="sandbox",
    metavar="MODE",
    help="sandbox, or workspace, which enforces nothing.",
)
@click.option(
    "--workspace",
    type=click.Choice(["auto", "overlay", "copy"]),
    default="auto",
    metavar="KIND",
    help="Its own tree: auto, overlay or copy.",
)
@click.option("--verify", metavar="CMD", help="Judge the patch, in a clean tree without network.")
@click.option("--setup", metavar="CMD", multiple=True, help="Make the tree ready, before the worker.")
@click.option(
    "--setup-toolchain",
    metavar="NAME",
    multiple=True,
    shell_complete=completion.toolchains,
    help="A toolchain for --setup, and not for the worker.",
)
@click.option(
    "--caches",
    type=click.Choice(["cold", "warm"]),
    default="cold",
    metavar="KIND",
    help="Of the toolchains: cold, or warm as on the host.",
)
@click.option("--results", metavar="DIR", type=click.Path(), help="Where the worker puts results.")
@click.option("--keep", is_flag=True, help="Keep the tree afterwards.")
@click.option("--json", "as_json", is_flag=True, help="The outcome as JSON, on the last line of stdout.")
@click.option("--quiet", is_flag=True, help="No progress and no output of the worker.")
@policy_flags()
def command(repo: str, task: str, as_json: bool, quiet: bool, workspace: Kind, **values: Any) -> None:
    """Give TASK to a worker on a copy of the folder REPO, which is never written itself; take the patch, verify it.
    `skep review`, `skep approve` and `skep deny` come after.

    \b
    Exit status: 0 completed, and verified if asked; 1 failed, or the setup or the
    verification did; 2 usage; 124 the --wall limit; 125 skep could not run it;
    127 no such program as worker; 128+N signal N came before the worker.

    \b
    Examples:
        skep run . "fix the failing test" --worker codex --verify 'pytest -q'
        skep run ../lib "update the docs" --worker './agent.sh {task}'
    """
    flags = collect(values)
    interrupts = Interrupts()
    interrupts.install()
    status = Status(quiet=quiet, output=2 if as_json else 1)
    before = Before(flags.report)
    try:
        with interrupts.breakable():
            order, bounds, runs = prepared(repo, task, flags, status=status, workspace=workspace, **values)
        report = opened(flags.report, bounds.boundary(Place(order.root), ()))
        run, folder = Pipeline(order, bounds, runs, status, interrupts).go()
    except Ending as error:
        before.remove_unwritten()
        raise SkepError("interrupted; the worker never ran", exit_code=error.exit_code) from None
    except BaseException:
        before.remove_unwritten()
        raise
    finally:
        status.close()
    document = run.document(folder)
    if run.reason and (line := f"run {run.id}: {run.reason}") not in status.warned:
        status.say(line)
    if as_json:
        sys.stdout.write(one_json(document) + "\n")
    else:
        _tell(run, folder, status, bounds.writable)
    sys.stdout.flush()
    interrupts.ignore()
    if report is not None:
        try:
            report.write((one_json(document) + "\n").encode())
        except OSError as error:  # what stands there may be the worker's
            told = f"--report {flags.report}: {error.strerror}; the run is kept: skep review {run.id}"
            raise CannotRun(told) from None
    sys.exit(exit_code(run))


def opened(path: str | None, boundary: Boundary) -> ReportFile | None:
    """The file of --report, before anything has run. A link that an earlier worker may have left there is not followed.
    Raises CannotRun.
    """
    if path is None:
        return None
    full = os.path.join(os.getcwd(), path)
    try:
        if os.path.islink(full) and not full.startswith("/dev/"):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), full)
        return ReportFile(full, boundary)
    except OSError as error:
        raise CannotRun(f"--report {path}: {error.strerror}: name a file that can be written") from None


def exit_code(run: Run) -> int:
    """What DESIGN fixes for `skep run`."""
    if run.state == "timed-out":
        return TIMED_OUT
    return 0 if run.state == "completed" and run.verification.outcome in ("passed", "none") else 1


def prepared(
    repo: str,
    task: str,
    flags: Flags,
    *,
    status: Status,
    workspace: Kind,
    worker: str | None,
    mode: Mode,
    verify: str | None,
    setup: tuple[str, ...],
    setup_toolchain: tuple[str, ...],
    results: str | None,
    keep: bool,
    caches: str,
) -> tuple[Order, PolicyBounds, Runs]:
    """What to do and how, nothing done yet. Raises UsageError, CannotRun."""
    if not task.strip():
        raise UsageError("the task is empty: say what the worker shall do")
    if mode == "workspace" and workspace == "overlay":
        raise UsageError(
            "--workspace overlay is made by the boundary, and --execution-mode workspace has none: drop one"
        )
    try:
        facts = gather()
        folder = folder_of(repo)
        git = find_git(facts.environ, project=str(folder))
        found = repository.find(git, Path(folder), home=facts.home)
        root = found.root if found else folder
        worker = as_preset(worker, flags, facts)
        effective = policies.effective(flags, facts=facts, project=root)
        policies.known(effective, facts)
        configured = effective.policy.worker.preset
        if worker is None and flags.preset is None and configured is not None:
            flags.preset = configured
            effective = policies.effective(flags, facts=facts, project=root, own_command=True)
        runs = state_outside(Runs(Path(facts.state_dir)), root)
        words = worker_words(worker, effective, facts)
        preset = presets.load(flags.preset, facts) if flags.preset else None
        verify_words, verify_text = verify_command(verify, effective)
        commands = [*effective.items("worker.setup"), *setup]
        for_setup = None
        for name in setup_toolchain:
            if name not in (there := preset_names("toolchains")):
                raise unknown("toolchain", name, there).at(source="--setup-toolchain")
            if not commands:
                raise UsageError("--setup-toolchain is for --setup, and there is none: add --setup CMD")
        if commands:
            more = replace(flags, toolchain=[*flags.toolchain, *setup_toolchain])
            for_setup = policies.for_setup(more, effective, facts=facts, project=root)
        order = Order(
            root=root,
            folder=folder,
            repository=found,
            git=git,
            task=task,
            worker=words,
            argv=with_task(words, task),
            mode=mode,
            verify=verify_words,
            verify_text=verify_text,
            results=results_folder(results, root),
            keep=keep,
            exclude=os.path.join(found.common_dir, "info/exclude") if found else None,
            user_exclude=repository.excludes_file(git, found, facts.environ, facts.home),
            setup=tuple((text, split(text, "--setup")) for text in commands),
            notes=policies.withheld_lines(effective, root)
            + policies.unset_lines(flags, facts)
            + (shut(preset, effective, facts) if preset else []),
            version=version("skep-cli"),
            workspace=workspace,
            state=agentstate.owned(preset.head.state, facts) if preset else (),
            caches=warm_caches(effective, setup_toolchain, facts) if caches == "warm" else None,
            ignore=(*LEFT_BEHIND, *(preset.head.ignore if preset else ())),
        )
        bounds = PolicyBounds(order, effective, facts, strict=flags.strict, host=here(), setup=for_setup)
    except PolicyError as error:
        raise refused(error) from None
    if any(len(os.fsencode(word)) >= MAX_WORD for word in (*order.argv, f"SKEP_TASK={task}")):
        raise UsageError(
            "the task is too long for a command line: write it to a file in REPO, and name that in the task"
        )
    problem = workers.missing(words, facts.environ)
    if problem:
        remedy = workers.remedy(words, presets.names(facts))
        raise CannotRun(f"the worker cannot start: {problem}{remedy}", exit_code=127)
    order = msgspec.structs.replace(
        order, notes=[*order.notes, *bounds.notes, *unverified(order, facts), *apart(order, facts)]
    )
    for line in order.notes:
        status.warn(line)
    if mode == "workspace":
        status.warn("execution mode workspace: nothing is enforced, the worker can do whatever you can")
    return order, bounds, runs


def warm_caches(effective: Effective, more: tuple[str, ...], facts: Facts) -> dict[str, str]:
    """The host's caches of the toolchains of the worker and the setup, by where those have their own."""
    from .toolchains import caches

    names = [*effective.items("worker.toolchains"), *effective.items("setup.toolchains"), *more]
    return caches(list(dict.fromkeys(names)), facts)


def apart(order: Order, facts: Facts) -> list[str]:
    """A line when the folder lies in a repository that has no part in the run, said before it."""
    tops = (str(top) for top in Path(order.folder).parents if (top / ".git").is_dir())
    top = None if order.repository else next(tops, None)
    if top is None or top == facts.home:
        return []
    return [f"{order.folder} is a plain folder to this run: the repository {top} tracks nothing in it"]


def unverified(order: Order, facts: Facts) -> list[str]:
    """A line when the verification's program is not here and no setup can bring it, said before the run."""
    if order.verify is None or order.setup:
        return []
    problem = workers.missing(order.verify, facts.environ)
    return [f"the patch will not be verified: {problem}"] if problem else []


def verify_command(given: str | None, effective: Effective) -> tuple[list[str] | None, str | None]:
    """The verification's words and its text, from the flag or from the policy; None when there is none. Raises
    UsageError.
    """
    if given is not None:
        return split(given, "--verify"), given
    words = list(effective.policy.worker.verify or ())
    return (words, shlex.join(words)) if words else (None, None)


def folder_of(repo: str) -> str:
    """The real path of an existing folder. Raises UsageError."""
    if not os.path.lexists(repo):
        raise UsageError(f"REPO {repo}: no such folder")
    real = os.path.realpath(repo)
    if not os.path.isdir(real):
        raise UsageError(f"REPO {repo} is not a folder: name the folder the worker shall work on")
    if not os.access(real, os.R_OK | os.X_OK):
        raise UsageError(f"REPO {repo} cannot be read: permission denied")
    if real == "/":
        raise UsageError("REPO is /: name the folder the worker shall work on")
    return real


def state_outside(runs: Runs, root: str) -> Runs:
    """The runs. Raises CannotRun when they are kept inside the tree, where a worker works."""
    real = os.path.realpath(runs.root)
    if real == root or real.startswith(root.rstrip("/") + "/"):
        raise CannotRun(
            f"the state folder {real} is inside {root}, which the worker gets, and records are kept out of its reach:"
            " set XDG_STATE_HOME to a folder outside"
        )
    return runs


def worker_words(given: str | None, effective: Effective, facts: Facts) -> list[str]:
    """The worker's command, from the flag or from the policy. Raises UsageError."""
    if given is not None:
        return split(given, "--worker")
    if command := effective.policy.worker.command:
        return list(command)
    known = {name: presets.load(name, facts).found(facts) is not None for name in presets.names(facts)}
    raise workers.none_configured(known)


def as_preset(worker: str | None, flags: Flags, facts: Facts) -> str | None:
    """The worker's command as typed, None when it is the name of a preset, which the flags have then. Raises
    UsageError.
    """
    if worker is None or worker.strip() not in presets.names(facts):
        return worker
    if flags.preset not in (None, worker.strip()):
        raise UsageError(f"--worker {worker} and --preset {flags.preset} are two presets: give one")
    flags.preset = worker.strip()
    return None


def results_folder(results: str | None, root: str) -> str | None:
    """Where results go when the operator said so. Raises UsageError when that is inside the tree, which is never
    written.
    """
    if results is None:
        return None
    real = os.path.realpath(results)
    if real == root or real.startswith(root.rstrip("/") + "/"):
        raise UsageError(f"--results {results} is inside REPO, which a run never writes: name a folder outside")
    if os.path.lexists(real) and not os.path.isdir(real):
        raise UsageError(f"--results {results} is not a folder")
    return real


def _tell(run: Run, folder: RunFolder, status: Status, writable: list[str]) -> None:
    for finding in run.findings:
        status.say(f"run {run.id}: {finding.kind}: {finding.path}: {finding.detail}")
    from .toolchains.whose import whose

    for line in egress_lines(run.egress, whose(run.egress.denied, facts=gather(), writable=writable)):
        status.say(f"run {run.id}: {line}")
    status.say(f"run {run.id}: record in {folder.path}")
    if run.files_changed:
        status.say(f"look: skep review {run.id}")
        why = {"none": " (nothing verified it)", "failed": " (it failed its verification)"}.get(
            run.verification.outcome, " (its verification could not be made)"
        )
        status.say(f"then: {run.approving}{why if '--force' in run.approving else ''}, or skep deny {run.id}")
    elif run.state != "completed":
        status.say(f"look: skep review {run.id}")
