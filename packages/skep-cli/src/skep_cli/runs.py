"""`skep runs`: what was run, newest first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from .errors import SkepError
from .evidence import record
from .evidence.record import one_json, shown_path
from .evidence.state import RunFolder, Runs, gather
from .screen.render import Page, minute, table

MAX_SHOWN = 50


@click.command("runs", short_help="List the runs.")
@click.option("--json", "as_json", is_flag=True, help="All of them, as JSON.")
@click.option("--all", "everything", is_flag=True, help=f"Not only the newest {MAX_SHOWN}.")
def command(as_json: bool, everything: bool) -> None:
    """List the runs, newest first.

    \b
    Examples:
        skep runs
        skep runs --all
        skep runs --json
    """
    facts = gather()
    runs = Runs(Path(facts.state_dir))
    found = runs.all()
    if as_json:
        sys.stdout.write(one_json([row(folder) for folder in found]) + "\n")
        return
    page = Page()
    if not found:
        page.line(f"no runs in {runs.folder}")
        return
    shown = found if everything else found[:MAX_SHOWN]
    rows = [_cells(row(folder), facts.home) for folder in shown]
    header, *lines = table(rows, ("RUN", "STATE", "VERIFICATION", "VERDICT", "STARTED", "SECONDS", "REPO", "TASK"))
    page.line(header, "bold")
    for line in lines:
        page.line(line)
    if len(shown) < len(found):
        page.line(f"… and {len(found) - len(shown)} older ones: --all")


def row(folder: RunFolder) -> dict[str, Any]:
    """One run, with the keys scripts read. A record that cannot be read is a row all the same."""
    try:
        run = record.load(folder)
    except SkepError:
        nothing = dict.fromkeys(("repo", "task", "verification", "verdict", "started", "seconds"))
        return {"id": folder.id, **nothing, "state": "running" if folder.alive() else "unreadable"}
    state = run.state
    if state == "running" and not folder.alive():
        state = "failed"  # skep was killed; the next run seals it
    return {
        "id": run.id,
        "repo": run.repo,
        "task": run.task,
        "state": state,
        "verification": run.verification.outcome,
        "verdict": run.verdict.verdict if run.verdict else None,
        "started": run.started,
        "seconds": run.seconds,
    }


def _cells(row: dict[str, Any], home: str) -> tuple[str, ...]:
    seconds = row["seconds"]
    return (
        row["id"],
        row["state"],
        row["verification"] or "",
        row["verdict"] or "",
        minute(row["started"]) if row["started"] else "",
        "" if seconds is None else f"{seconds:.1f}",
        shown_path(row["repo"] or "", home),
        row["task"] or "",
    )
