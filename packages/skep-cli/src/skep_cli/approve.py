"""`skep approve` and `skep deny`: the operator's verdict on a run."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from pathlib import Path

import click
import msgspec
from skep_policy.facts import Facts

from . import completion
from .errors import SkepError
from .evidence import audit, record
from .evidence.record import Run, Trees, Verdict
from .evidence.state import RunFolder, Runs, gather, guarded, read_file
from .git import branch, patch, repository
from .git.branch import Branch, Builder, Identity, Kept
from .git.hostgit import Git, GitFailed, find_git, user_config
from .git.repository import Repository
from .owners import name_of
from .screen.render import Page, count, minute, visible

MAX_KEPT = 256 << 20
FALLBACK = Identity("skep", "skep@localhost")


@click.command("approve", short_help="Make a branch of a run's patch.")
@click.argument("run", shell_complete=completion.runs)
@click.option("--force", is_flag=True, help="Although it failed its verification, or has none; the record says so.")
def command(run: str, force: bool) -> None:
    """Make the branch skep/RUN of a run's patch in its repository. RUN is an id, the beginning of one, or `last`.

    The branch starts at the commit the run started from; uncommitted work of then is a commit of its own. The branch
    that is checked out, the working tree and the index are not touched, and no hook runs.

    \b
    Examples:
        skep approve last
        skep approve 1m8 --force
    """
    facts = gather()
    folder = Runs(Path(facts.state_dir)).find(run)
    with guarded(folder.path), _Held(folder):
        approve(folder, facts, force=force, page=Page())


@click.command("deny", short_help="Turn a run down.")
@click.argument("run", shell_complete=completion.runs)
def deny(run: str) -> None:
    """Record that a run's patch is not wanted. RUN is an id, the beginning of one, or `last`.

    \b
    Examples:
        skep deny last
    """
    facts = gather()
    folder = Runs(Path(facts.state_dir)).find(run)
    with guarded(folder.path), _Held(folder):
        found = decided(folder)
        found.verdict = Verdict("denied", audit.now())
        _record(folder, found)
        Page().line(f"run {found.id} is denied")


class _Held:
    """The run's lock, for whom nobody else works on it. Raises SkepError when somebody does."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        if not self._folder.lock.take(wait=False):
            raise SkepError(f"run {self._folder.id} is still going, or being decided at this moment")

    def __exit__(self, *exc: object) -> None:
        self._folder.lock.release()


def decided(folder: RunFolder) -> Run:
    """The record of a run that is over and has no verdict yet, after its log and every file held. Raises SkepError."""
    checked = audit.check(folder)
    if checked.problem and not checked.problem.torn:
        raise SkepError(f"the record of {folder.id} does not hold: {checked.problem}; nothing was done")
    run = record.load(folder)
    if checked.last("sealed") is None:
        raise SkepError(f"run {run.id} came to no end: skep was killed; start it again")
    if run.verdict:
        raise SkepError(f"run {run.id} was {run.verdict.verdict} already, at {minute(run.verdict.time)}")
    return run


def approve(folder: RunFolder, facts: Facts, *, force: bool, page: Page) -> None:
    """The verdict is on record, and the branch there when the run's folder is a repository. Raises SkepError."""
    run = decided(folder)
    if not run.files_changed or run.trees is None or run.trees.result is None:
        raise SkepError(f"run {run.id} changed nothing: there is nothing to approve")
    _may(run, force=force)
    program = find_git(facts.environ, project=run.repo)
    found = _repository(run, program, facts) if run.trees.repository else None
    _same_objects(run, run.trees, folder, program)
    forced = run.verification.outcome != "passed" or run.state != "completed"
    run.verdict = Verdict("approved", audit.now(), forced)
    if found is None:
        _record(folder, run)
        where, what = shlex.quote(run.repo), shlex.quote(str(folder.patch))
        page.line(f"run {run.id} is approved; {run.repo} is no git repository, so there is no branch")
        page.line(f"apply it: cd {where} && git apply {what}")
        return
    made = _branch(folder, run, found, program, facts)
    run.verdict.branch, run.verdict.commit = made.name, made.commit
    _record(folder, run)
    _tell(run, made, found, page)


def _same_objects(run: Run, trees: Trees, folder: RunFolder, program: str) -> None:
    """The patch on record is the difference of the trees on record. Raises SkepError."""
    assert trees.result is not None
    try:
        same = patch.matches(Git(program, folder.git), trees.baseline, trees.result, folder.patch)
    except GitFailed as error:
        raise SkepError(f"{run.repo} no longer has what {run.id} started from ({error.message})") from None
    if not same:
        raise SkepError(f"the objects of {run.id} are not those of its patch.diff; nothing was done")


def _may(run: Run, *, force: bool) -> None:
    problems: list[str] = []
    if run.state != "completed":
        problems.append(f"its worker {run.state}")
    match run.verification.outcome:
        case "none":
            problems.append("it was not verified")
        case "failed":
            problems.append("it failed its verification")
        case "unavailable":
            problems.append("its verification could not be run")
        case "passed":
            pass
    if problems and not force:
        raise SkepError(f"run {run.id} is not approved: {' and '.join(problems)}; --force approves it, on record")


def _repository(run: Run, program: str, facts: Facts) -> Repository:
    if not os.path.isdir(run.repo):
        raise SkepError(
            f"the repository {run.repo} is not there any more: put it back, or apply the patch of {run.id} yourself"
        )
    found = repository.find(program, Path(run.repo), home=facts.home)
    assert run.trees is not None
    if found is None or found.root != run.repo or found.object_format != run.trees.object_format:
        raise SkepError(f"{run.repo} is not the repository it was when {run.id} started")
    return found


def _branch(folder: RunFolder, run: Run, found: Repository, program: str, facts: Facts) -> Branch:
    """The branch is in the repository. An approval that was interrupted is finished."""
    if not os.access(found.objects, os.W_OK):
        owner = name_of(os.stat(found.objects).st_uid)
        raise SkepError(
            f"{run.repo} belongs to {owner} and you may not write there: approve as {owner}, or in a clone of your own"
            f" apply {shlex.quote(str(folder.patch))} with `git apply`"
        )
    there = branch.existing(program, found, run.id)
    log = audit.Log(folder)
    try:
        if there:
            before = audit.check(folder).last("approving")
            if before is None or before["commit"] != there:
                raise SkepError(
                    f"{run.repo} has a branch skep/{run.id} already: rename or delete it, then approve again"
                )
            return Branch(f"skep/{run.id}", there, [], before["left_out"], before["raw"], before["uncommitted"])
        kept = msgspec.convert(json.loads(read_file(folder.git / "skep.json", MAX_KEPT)), Kept)
        try:
            made = Builder(run, folder, program, kept).build(identity(program, found, facts), message(run))
        except GitFailed as error:
            raise SkepError(f"{run.repo} no longer has what {run.id} started from ({error.message})") from None
        noted = {key: getattr(made, key) for key in ("commit", "left_out", "raw", "uncommitted")}
        log.append("approving", noted)
        branch.bring(made, folder, program, found, run)
        return made
    finally:
        log.close()


def _record(folder: RunFolder, run: Run) -> None:
    """The verdict is in the log and in `run.json`."""
    log = audit.Log(folder)
    try:
        verdict = msgspec.to_builtins(run.verdict)
        log.keep(
            "run.json",
            run.encode(),
            "verdict",
            {**verdict, "verification": run.verification.outcome, "uid": os.geteuid()},
        )
    finally:
        log.close()


def identity(program: str, found: Repository, facts: Facts) -> Identity:
    """Who the user is to git; skep itself when git knows nobody."""

    def configured(name: str) -> str | None:
        return user_config(program, f"user.{name}", git_dir=found.git_dir, environ=facts.environ)

    name = facts.environ.get("GIT_COMMITTER_NAME") or facts.environ.get("GIT_AUTHOR_NAME") or configured("name")
    email = facts.environ.get("GIT_COMMITTER_EMAIL") or facts.environ.get("GIT_AUTHOR_EMAIL") or configured("email")
    return Identity(name, email) if name and email else FALLBACK


def message(run: Run) -> str:
    """The message of the commit: the task, and what is known of the run as trailers."""
    task = visible(run.task).strip()
    first, _, rest = task.partition("\n")
    subject = textwrap.shorten(first, 72, placeholder=" …") or f"skep run {run.id}"
    body = [] if subject == first and not rest.strip() else [task]
    verification = run.verification.outcome
    trailers = [f"Skep-Run: {run.id}", f"Skep-Verification: {verification}"]
    if run.verification.command:
        trailers.append(f"Skep-Verification-Command: {' '.join(visible(run.verification.command).split())}")
    trailers.append(f"Skep-Mode: {run.mode}")
    if run.verdict and run.verdict.forced:
        trailers.append("Skep-Forced: yes")
    return "\n\n".join((subject, *body, "\n".join(trailers))) + "\n"


def _tell(run: Run, made: Branch, found: Repository, page: Page) -> None:
    assert run.trees is not None
    page.line(f"branch {made.name} ({made.commit[:12]}) in {run.repo}")
    if made.uncommitted:
        page.line("  its first commit is the uncommitted work the run started from")
    if found.head != run.trees.head:
        was = run.trees.head[:12] if run.trees.head else "an empty repository"
        page.line(f"  HEAD has moved since: the branch starts at {was}, as the run did")
    if made.left_out:
        page.line(f"  left out, being of other repositories: {_some(made.left_out)}; patch.diff has them")
    if made.raw:
        page.line(f"  stored as they are on disk, though this repository filters them: {_some(made.raw)}")
    since = run.trees.branch or (run.trees.head or "")[:12]
    if not since:
        page.line(f"look: git log {made.name}")
    elif made.uncommitted:  # merged, it would stand beside the same work in the user's tree, and git refuses that
        page.line(
            f"look: git diff {made.name}^ {made.name}   take it, once yours is committed: git cherry-pick {made.name}"
        )
    else:
        page.line(f"look: git diff {since}...{made.name}   merge: git merge {made.name}")


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:5])
    return f"{shown} and {count(len(paths) - 5, 'more file')}" if len(paths) > 5 else shown
