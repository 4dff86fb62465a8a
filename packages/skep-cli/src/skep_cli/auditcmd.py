"""`skep audit verify`: does the record of a run, or of every run, hold?"""

from __future__ import annotations

from pathlib import Path

import click

from . import completion
from .errors import SkepError
from .evidence.audit import check
from .evidence.state import RunFolder, Runs, gather
from .screen.render import Page, count


@click.group("audit", short_help="Check the record of runs.")
def command() -> None:
    """Check the record of runs.

    \b
    Examples:
        skep audit verify
        skep audit verify last
    """


@command.command("verify", short_help="Check the record of a run, or of all.")
@click.argument("run", required=False, shell_complete=completion.runs)
def verify(run: str | None) -> None:
    """Follow the hash chain of a run's log, and compare the other files with it. Without RUN, of every run.

    The first thing that is wrong is named. Exit status: 0 when everything holds, 1 when something does not.

    \b
    Examples:
        skep audit verify
        skep audit verify last
    """
    runs = Runs(Path(gather().state_dir))
    folders = [runs.find(run)] if run is not None else list(reversed(runs.all()))
    page = Page()
    if not folders:
        page.line(f"no runs in {runs.folder}")
    wrong = [folder.id for folder in folders if not _verify(folder, page)]
    if wrong and run is None:
        raise SkepError(f"{count(len(wrong), 'record')} of {len(folders)} do not hold")
    if wrong:
        raise SkepError(f"the record of {wrong[0]} does not hold")


def _verify(folder: RunFolder, page: Page) -> bool:
    going = folder.alive()
    checked = check(folder)
    problem = checked.problem
    told = f"{count(len(checked.events), 'event')}, {count(checked.files, 'file')}"
    if problem is None:
        page.line(f"{folder.id}: holds ({told}{', still going' if going else ''})", "green")
        return True
    if problem.torn and going:
        page.line(f"{folder.id}: holds so far ({told}, still going)", "green")
        return True
    note = " (what a crash leaves; the lines before it are intact)" if problem.torn else ""
    page.line(f"{folder.id}: {problem}{note}", "red")
    return False
