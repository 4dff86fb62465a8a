"""`skep review`: everything a person needs to decide, and nothing a worker could make the terminal do."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from . import autoexec, completion
from .autoexec import Surface
from .errors import SkepError
from .evidence import audit, record, results
from .evidence.record import Run, one_json
from .evidence.state import RunFolder, Runs, gather
from .git import patch
from .git.hostgit import Git, find_git
from .git.objects import Store
from .git.trees import LINK, Change, changes
from .screen.render import Page, count, one_line, visible
from .screen.told import place, reason_words

DIFF_LINES, LINE_LENGTH = 400, 500
SAID_LINES = 20
SAID_BYTES = 16 << 10
LISTED = 40
MAX_LINKS = 100
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Reviewed(msgspec.Struct):
    """What is shown, beside the record itself."""

    run: Run
    record: str
    """`holds`, or what is wrong with the record."""
    diffstat: list[tuple[str, str, str]]
    auto_exec: list[Surface]
    results: results.Results
    said: str
    summary: str | None


@click.command("review", short_help="Look at a run before you decide.")
@click.argument("run", shell_complete=completion.runs)
@click.option("--json", "as_json", is_flag=True, help="As JSON, without the diff.")
@click.option("--full", is_flag=True, help=f"The whole diff, not its first {DIFF_LINES} lines.")
def command(run: str, as_json: bool, full: bool) -> None:
    """Show a run: patch, verification, what the worker said, egress, findings, and what of the patch runs by itself.

    RUN is an id, the beginning of one, or `last`.

    \b
    Examples:
        skep review last
        skep review last --full
        skep review 1m8 --json
    """
    facts = gather()
    folder = Runs(Path(facts.state_dir)).find(run)
    found = examine(folder, find_git(facts.environ, project=record.load(folder).repo))
    if as_json:
        sys.stdout.write(one_json(as_document(found, folder)) + "\n")
        return
    show(found, folder, Page(), full=full)


def examine(folder: RunFolder, program: str) -> Reviewed:
    """Everything about a run, gathered. Raises SkepError when there is no readable record."""
    run = record.load(folder)
    checked = audit.check(folder)
    diffstat: list[tuple[str, str, str]] = []
    surface: list[Surface] = []
    trees = run.trees
    if trees and trees.result and run.files_changed:
        git = Git(program, folder.git)
        try:
            store = Store(git, trees.object_format)
            diffstat = patch.summary(git, trees.baseline, trees.result)
            work = changes(store.tree(trees.baseline), store.tree(trees.result))
            surface = _links_out(autoexec.surface(work), work, store)
        except (SkepError, OSError):  # the objects are gone; names are what is left
            surface = [Surface(path, why) for path in run.files_changed if (why := autoexec.reason_for(path))]
    return Reviewed(
        run,
        "holds" if checked.problem is None else str(checked.problem),
        diffstat,
        surface,
        results.listing(run.results),
        _tail(folder.path / "worker.log"),
        results.summary(run.results),
    )


def _links_out(surface: list[Surface], work: list[Change], store: Store) -> list[Surface]:
    """The surface, with links that leave the tree told so."""
    links = {change.path: change.new.oid for change in work if change.new and change.new.mode == LINK}
    targets = {path: os.fsdecode(store.content(links[path])) for path in list(links)[:MAX_LINKS]}
    told: list[Surface] = []
    for item in surface:
        target = targets.get(item.path)
        if target is not None and autoexec.leads_out(item.path, target):
            item = Surface(item.path, f"a link out of the tree, to {target}")
        told.append(item)
    return told


def _tail(path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        file.seek(max(0, size - SAID_BYTES))
        lines = file.read(SAID_BYTES).decode(errors="surrogateescape").splitlines()
    return "\n".join(lines[-SAID_LINES:])


def as_document(found: Reviewed, folder: RunFolder) -> dict[str, Any]:
    """The record as `skep run --json` has it, and what a review adds."""
    run = msgspec.to_builtins(found.run)
    return {
        **found.run.document(folder),
        **{
            key: run[key]
            for key in ("repo", "task", "worker", "mode", "started", "ended", "reason", "verdict", "limit")
        },
        "record": found.record,
        "diffstat": [{"added": added, "removed": removed, "path": path} for added, removed, path in found.diffstat],
        "auto_exec": msgspec.to_builtins(found.auto_exec),
        "results_listing": msgspec.to_builtins(found.results.items),
        "said": found.said,
        "summary": found.summary,
    }


def show(found: Reviewed, folder: RunFolder, page: Page, *, full: bool) -> None:
    """The review as text."""
    run = found.run
    _head(found, folder, page)
    _verification(run, page)
    _surface(found, page)
    _said(found, page)
    _egress(run, page)
    if run.findings:
        page.heading("Findings")
        for finding in run.findings[:LISTED]:
            page.line(f"  {finding.kind}: {one_line(finding.path)}: {one_line(finding.detail)}", "yellow")
        _more(len(run.findings), page)
    _results(found, page)
    _patch(found, folder, page, full=full)
    page.line()
    if run.verdict is None and run.files_changed and run.state != "running":
        page.line(f"{run.approving}   or   skep deny {run.id}", "bold")


def _head(found: Reviewed, folder: RunFolder, page: Page) -> None:
    run = found.run
    seconds = f" in {run.seconds:.1f} s" if run.seconds is not None else ""
    status = "" if run.exit_code is None else f", exit status {run.exit_code}"
    page.line(f"run {run.id}: {run.state}{seconds}{status}", "bold")
    page.line(f"  task      {one_line(run.task)}")
    page.line(f"  repo      {run.repo}")
    page.line(f"  worker    {one_line(shlex.join(run.worker))}")
    if run.reason:
        page.line(f"  reason    {one_line(run.reason)}", "red")
    if run.mode == "workspace":
        page.line("  boundary  NONE: execution mode workspace, nothing was enforced", "red")
    else:
        off = [f"{name} ({why})" for name, why in sorted(run.layers.items()) if isinstance(why, str)]
        page.line(f"  boundary  {', '.join(name for name, state in sorted(run.layers.items()) if state is True)}")
        if off:
            page.line(f"  not in force  {one_line(', '.join(off))}", "yellow")
    colour = "green" if found.record == "holds" else "red"
    page.line(f"  record    {found.record} ({folder.path})", colour)
    if run.verdict:
        forced = ", by force" if run.verdict.forced else ""
        at = f", branch {run.verdict.branch}" if run.verdict.branch else ""
        page.line(f"  verdict   {run.verdict.verdict} at {run.verdict.time}{forced}{at}")
    for line in run.notes:
        page.line(f"  policy    {one_line(line)}", "yellow")


def _verification(run: Run, page: Page) -> None:
    page.heading("Verification")
    if run.setup and run.setup.outcome == "failed":
        page.line(f"  the setup failed: {one_line(run.setup.command)}, exit status {run.setup.exit_code}", "red")
    outcome = run.verification.outcome
    colour = {"passed": "green", "none": "yellow"}.get(outcome, "red")
    if outcome == "none":
        page.line("  none was asked for", colour)
        return
    detail, code = run.verification.detail, run.verification.exit_code
    status = f": {one_line(detail)}" if detail else "" if code is None else f", exit status {code}"
    unbounded = " (without a boundary: execution mode workspace)" if run.mode == "workspace" else ""
    page.line(f"  {outcome}: {one_line(run.verification.command or '')}{status}{unbounded}", colour)


def _surface(found: Reviewed, page: Page) -> None:
    page.heading("Runs by itself, or gives orders")
    if not found.auto_exec:
        page.line("  nothing that is known to")
    for item in found.auto_exec[:LISTED]:
        page.line(f"  {one_line(item.path)}: {one_line(item.reason)}", "yellow")
    _more(len(found.auto_exec), page)


def _said(found: Reviewed, page: Page) -> None:
    if found.summary:
        page.heading("What the worker says it did (its own words)")
        for line in found.summary.splitlines()[:LISTED]:
            page.quoted(line)
    page.heading("The end of its output")
    for line in found.said.splitlines() or ["(nothing)"]:
        page.quoted(line)


def _egress(run: Run, page: Page) -> None:
    page.heading("Network")
    if not run.egress.allowed and not run.egress.denied:
        page.line("  nothing was asked for" if run.mode == "sandbox" else "  not watched: execution mode workspace")
    for allowed in run.egress.allowed[:LISTED]:
        traffic = f"{allowed.bytes_out:,} bytes out, {allowed.bytes_in:,} in"
        failed = f", never reached: {one_line(allowed.why)}" if 0 < allowed.count == allowed.unreached else ""
        page.line(f"  allowed {place(allowed.host, allowed.port)}  {count(allowed.count, 'time')}, {traffic}{failed}")
    for denied in run.egress.denied[:LISTED]:
        times, why = count(denied.count, "time"), reason_words(denied.reason)
        page.line(f"  denied  {one_line(place(denied.host, denied.port))}  {times}, {why}", "yellow")
    _more(max(len(run.egress.allowed), len(run.egress.denied)), page)


def _results(found: Reviewed, page: Page) -> None:
    items = found.results.items
    if not items:
        return
    page.heading(f"Results ({found.run.results})")
    for item in items[:LISTED]:
        detail = f"{item.size:,} bytes" if item.kind == "file" else item.detail or item.kind
        page.line(f"  {one_line(item.path)}  {detail}")
    _more(len(items), page)


def _more(number: int, page: Page) -> None:
    if number > LISTED:
        page.line(f"  … and {number - LISTED} more: --json has them")


def _patch(found: Reviewed, folder: RunFolder, page: Page, *, full: bool) -> None:
    run = found.run
    page.heading(f"Patch: {count(len(run.files_changed), 'file')} changed")
    for added, removed, path in found.diffstat:
        page.line(f"  {one_line(path)}  +{added} -{removed}" if added != "-" else f"  {one_line(path)}  binary")
    if not run.patch:
        return
    page.line()
    fd = os.open(folder.patch, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file):
            if number >= DIFF_LINES and not full:
                page.line(f"… cut here; the whole patch: skep review {run.id} --full, or {run.patch}", "yellow")
                return
            text = visible(line.rstrip("\n"))
            if len(text) > LINE_LENGTH and not full:
                text = text[:LINE_LENGTH] + "…"
            colour = COLOURS.get(text[:1])
            page.raw(page.style(text, *([colour] if colour else [])) + "\n")
