"""`skep trust`: look at what a project file widens, and pin the file by its hash."""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Layer, merge
from skep_policy.load import parse_policy, read_text
from skep_policy.trust import TrustStore

from .errors import SkepError, UsageError, refused
from .evidence.state import gather, guarded
from .projectfile import PROJECT_FILE, project_of, store_path, trust_store
from .screen.render import one_line


def write_store(store: TrustStore, facts: Facts) -> None:
    """The store is on disk, whole, whatever happens meanwhile."""
    path = store_path(facts)
    with guarded(facts.state_dir):
        os.makedirs(facts.state_dir, mode=0o700, exist_ok=True)
        draft = f"{path}.{os.getpid()}"
        with open(draft, "wb") as file:
            file.write(store.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)


@click.command(short_help="Let a project's skep.toml widen the policy.")
@click.argument("repo", default=".", type=click.Path(exists=True, file_okay=False))
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--forget", is_flag=True, help="Trust it no longer.")
def command(repo: str, yes: bool, forget: bool, **_: Any) -> None:
    """Show what the skep.toml of REPO, or of this folder, widens; ask; and pin the file as it is now.

    The file comes from the same place as the code that is not trusted: it may always narrow the policy, and what it
    widens counts only after this. Any change to it asks again.

    \b
    Examples:
        skep trust
        skep trust --yes ../lib
        skep trust --forget
    """
    facts = gather()
    project = project_of(os.path.realpath(repo), facts=facts)
    path = os.path.join(project, PROJECT_FILE)
    try:
        store = trust_store(facts)
    except PolicyError as error:
        raise refused(error) from None
    if forget:
        write_store(store.forgetting(project), facts)
        click.echo(f"{one_line(path, None)} is not trusted")
        return
    if not os.path.lexists(path):
        raise UsageError(f"{path} does not exist: there is nothing to trust")
    try:
        text = read_text(path)
        policy = parse_policy(text, source=path)
        withheld = merge([Layer(path, policy, trusted=False, base=project)]).withheld
    except PolicyError as error:
        raise refused(error) from None
    if not withheld:
        click.echo(f"{one_line(path, None)} only narrows the policy: it counts without being trusted")
        return
    if not store.is_trusted(project, text.encode()):
        click.echo(f"{one_line(path, None)} asks for:")
        for entry in withheld:
            click.echo(f"  {one_line(f'{entry.key} = {entry.value}', None)}")
        if not yes and not _agreed(project):
            raise SkepError(f"{path} is not trusted: it counts only where it narrows")
        write_store(store.trusting(project, text.encode()), facts)
    click.echo(f"{one_line(path, None)} is trusted as it is now")


def _agreed(project: str) -> bool:
    if not os.isatty(0):
        click.echo(
            f"no terminal to ask on; `skep trust --yes {one_line(shlex.quote(project), None)}` allows it", err=True
        )
        return False
    return click.confirm("Allow it?")
