"""`skep workers`: the agents skep knows, which are here, and what each is granted."""

from __future__ import annotations

import json
from typing import Any

import click
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts

from . import completion, presets
from .errors import refused
from .evidence.state import gather
from .presets import Preset
from .screen.render import Page


@click.command("workers", short_help="List the agents skep knows, and what each is granted.")
@click.argument("name", required=False, shell_complete=completion.workers)
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
def command(name: str | None, as_json: bool) -> None:
    """List the presets of workers: whether the program is here, and what it is granted when it is used.

    \b
    Your own:     NAME.toml in the folder `workers` beside your configuration file, in the form of the built-in ones.

    \b
    Examples:
        skep workers
        skep workers codex
        skep run . "fix the failing test" --worker codex
        skep exec --preset claude -- claude
    """
    facts = gather()
    try:
        chosen = [presets.load(one, facts) for one in ([name] if name else presets.names(facts))]
    except PolicyError as error:
        raise refused(error) from None
    if as_json:
        click.echo(json.dumps([document(preset, facts) for preset in chosen]))
        return
    page = Page()
    for preset in chosen:
        _tell(preset, facts, page)
    page.line(f"your own: {presets.own_folder(facts)}/NAME.toml", "dim")


def document(preset: Preset, facts: Facts) -> dict[str, Any]:
    """One preset for scripts."""
    policy = preset.policy
    state = {
        path: {"variable": own.variable, "keep": [*own.keep, *own.beside]} for path, own in preset.head.state.items()
    }
    return {
        "name": preset.name,
        "source": preset.source,
        "found": preset.found(facts),
        "command": list(policy.worker.command or ()),
        "allow": list(policy.network.allow),
        "env": list(policy.env.pass_),
        "set": dict(policy.env.set),
        "state": state,
        "nested": preset.head.nested,
        "untried": preset.head.untried,
    }


def _tell(preset: Preset, facts: Facts, page: Page) -> None:
    policy, found = preset.policy, preset.found(facts)
    page.line(f"{preset.name}: {found or 'not found'}", "green" if found else "dim")
    page.line(f"  runs      {' '.join(policy.worker.command or ())}")
    page.line(f"  reaches   {', '.join(policy.network.allow) or 'nothing'}")
    page.line(f"  is told   {', '.join((*policy.env.pass_, *policy.env.set)) or 'nothing'}")
    for path, state in preset.head.state.items():
        page.line(f"  copies    {path}: {', '.join(state.keep)}")
        if state.beside:
            page.line(f"            {path.rpartition('/')[0]}: {', '.join(state.beside)}")
    page.line(f"  sandbox   of its own: {preset.head.nested}")
    if preset.head.untried:
        page.line(f"  untried   {preset.head.untried}", "yellow")
