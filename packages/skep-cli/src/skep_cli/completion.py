"""What a shell offers for the words of a command: runs, workers, toolchains, paths."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem, FishComplete, add_completion_class
from skep_policy.preset import preset_names

from . import presets
from .errors import SkepError
from .evidence import record
from .evidence.state import Runs, gather
from .screen.render import one_line

OFFERED = 30
"""Runs of which the record is read for a keystroke."""


@add_completion_class
class Fish(FishComplete):
    """What is said of a word is shown to its end, commas and all."""

    name = "fish"
    source_template = FishComplete.source_template.replace('string split ","', 'string split --max 1 ","')


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest runs, each with its task, and `last`. Nothing when they cannot be listed."""
    try:
        found = [run for run in Runs(Path(gather().state_dir)).all() if run.id.startswith(incomplete)]
    except SkepError:
        return []
    items = [CompletionItem("last", help="the newest run")] if found and "last".startswith(incomplete) else []
    for run in found[:OFFERED]:
        try:
            items.append(CompletionItem(run.id, help=one_line(record.load(run).task, 60)))
        except SkepError:
            items.append(CompletionItem(run.id))
    return items


def workers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        known = presets.names(gather())
    except SkepError:
        return []
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own folders."""
    return [CompletionItem(incomplete, type="dir")]


def paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own files and folders."""
    return [CompletionItem(incomplete, type="file")]


def toolchains(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(preset_names("toolchains")) if name.startswith(incomplete)]
