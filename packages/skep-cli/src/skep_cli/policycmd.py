"""`skep policy`: what is in force and where it comes from; what a decision would be, by the code that makes it in a
run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal

import click
import msgspec
from skep_policy.boundary import Access, Boundary
from skep_policy.enforcement import Key
from skep_policy.errors import PolicyError
from skep_policy.explain import Explanation, explain_host, explain_path
from skep_policy.facts import Facts
from skep_policy.layers import Effective, Layer, merge
from skep_policy.load import load_policy
from skep_policy.paths import expand
from skep_policy.resolution import resolve
from skep_policy.verdict import NOT_LISTED

from . import completion, policies
from .errors import CannotRun, UsageError, refused
from .evidence.state import gather
from .flags import Flags
from .host import BACKENDS
from .options import collect, here, policy_flags
from .policyshow import brief, whole
from .private import own
from .refusals import said
from .screen.fold import columns, folded
from .screen.render import one_line
from .screen.told import reason_words


@click.group(short_help="Show, check and explain the policy.")
def command() -> None:
    """What a worker started in this folder may do. Every subcommand takes the flags of `skep exec`.

    \b
    Examples:
        skep policy show
        skep policy check
        skep policy explain api.example.com
    """


def in_force(values: dict[str, Any]) -> tuple[Effective, Flags, Facts]:
    """The policy for the current folder with the flags of a command taken out of its arguments. Raises SkepError."""
    flags, facts = collect(values), gather()
    try:
        return policies.effective(flags, facts=facts, project=facts.cwd), flags, facts
    except PolicyError as error:
        raise refused(error) from None


def boundary_of(policy: Effective, flags: Flags, facts: Facts, *, absent_too: bool = False) -> Boundary:
    try:
        return resolve(policy, facts=facts, workspace=facts.cwd, strict=flags.strict, absent_too=absent_too)
    except PolicyError as error:
        raise CannotRun(said(error)) from None


def tell(line: str) -> None:
    """One line, whatever a policy file that nobody trusts says."""
    click.echo(folded(one_line(line, None), columns(sys.stdout)))


def as_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=_plain), indent=2).decode())


def _plain(value: object) -> int:
    """An access as the number it is."""
    if isinstance(value, Access):
        return int(value)
    raise NotImplementedError


JSON: Callable[[Any], Any] = click.option("--json", "json", is_flag=True, help="One JSON document on stdout.")


@command.command(short_help="Print what is in force, and where it is from.")
@click.option("--all", "everything", is_flag=True, help="What is built in too, line by line.")
@policy_flags(report=False)
@JSON
def show(json: bool, everything: bool, **values: Any) -> None:
    """Print what is set and by which file or flag, what was asked for and not granted, and what comes of it: where it
    may write, what is read-only or hidden, what it may reach. What is built in is counted; --all lists it, with what
    each system makes of each key.

    \b
    Examples:
        skep policy show
        skep policy show --preset claude
        skep policy show --all --toolchain python
    """
    policy, flags, facts = in_force(values)
    boundary = boundary_of(policy, flags, facts)
    if json:
        as_json(
            {
                "entries": policy.entries,
                "withheld": policy.withheld,
                "roots": boundary.roots,
                "protects": boundary.protects,
                "hides": boundary.hides,
                "env": sorted(boundary.env),
                "network": boundary.rules.mode,
                "enforcement": enforcement(),
            }
        )
        return
    lines = whole if everything else brief
    for line in lines(policy, boundary, enforcement(), here().backend):
        tell(line) if line else click.echo()


def enforcement() -> dict[str, dict[str, Key]]:
    """What each backend makes of each key of a policy, by key and backend."""
    from skep_bwrap import keys as bwrap
    from skep_seatbelt import keys as seatbelt

    tables = dict(zip(BACKENDS.values(), (bwrap.KEYS, seatbelt.KEYS), strict=True))
    return {key: {name: table[key] for name, table in tables.items()} for key in sorted(bwrap.KEYS)}


@command.command(short_help="Check a policy file, or what applies here.")
@click.argument("file", required=False, type=click.Path())
@policy_flags(report=False)
def check(file: str | None, **values: Any) -> None:
    """Check FILE, or everything that applies to the current folder, to the last value. Exits 0 when it can be used.

    \b
    Examples:
        skep policy check
        skep policy check skep.toml
        skep policy check --policy ci.toml --toolchain python
    """
    if file is not None:
        try:
            policies.known(merge([Layer(file, load_policy(file))]), gather())
        except PolicyError as error:
            raise refused(error) from None
    usable(values)
    if file is not None:
        usable({**values, "policy": file})
    click.echo("the policy can be used" if file is None else f"{file} can be used")


def usable(values: dict[str, Any]) -> None:
    """What the flags and files come to can be enforced here, from the current folder. Raises SkepError."""
    policy, flags, facts = in_force(values)
    try:
        policies.known(policy, facts)
    except PolicyError as error:
        raise refused(error) from None
    boundary = boundary_of(policy, flags, facts)
    if here().backend == "seatbelt":
        from skep_seatbelt import refuse

        try:
            refuse(here().boundary(boundary))
        except PolicyError as error:
            raise CannotRun(said(error)) from None


@command.command(short_help="Say whether a host or a path may be reached.")
@click.argument("target", shell_complete=completion.paths)
@policy_flags(report=False)
@JSON
def explain(target: str, json: bool, **values: Any) -> None:
    """Say whether TARGET, a HOST[:PORT] or a path, may be reached, and which rule decides. Exits 0 when it may, 1
    when not.

    What begins with `/`, `~` or a dot or holds a `/` is a path, and so is a name that stands in the current folder;
    anything else is a host. The answer says which it was taken for: `./NAME` is always a path, `NAME:443` a host.

    \b
    Examples:
        skep policy explain github.com:22
        skep policy explain ~/.ssh/id_ed25519
        skep policy explain api.example.com --allow '*.example.com'
    """
    policy, flags, facts = in_force(values)
    explanation: Explanation
    if not target.strip():
        raise UsageError("TARGET is empty: name a host or a path")
    kind = kind_of(target, facts.cwd)
    if kind == "path":
        boundary = boundary_of(policy, flags, facts, absent_too=True)
        try:
            explanation = with_own_folders(explain_path(boundary, target), boundary, target)
        except PolicyError as error:
            raise UsageError(str(error)) from None
    else:
        explanation = explain_host(policy, target)
    if json:
        as_json(explanation)
    else:
        rule = f" by {explanation.rule} ({explanation.source})" if explanation.rule else ""
        verdict = "allowed" if explanation.allow else "denied"
        why = reason_words(explanation.reason)
        if explanation.reason == NOT_LISTED:
            why += f"; --allow {explanation.target.removesuffix(':443')} lists it"
        tell(f"{kind} {explanation.target}: {verdict}{rule}{why and f': {why}'}")
    sys.exit(0 if explanation.allow else 1)


def with_own_folders(explanation: Explanation, boundary: Boundary, written: str) -> Explanation:
    """The same, or what is so where something of the worker's own stands at the path as `written`, or where its links
    lead. A link in such a folder is not there for the worker.
    """
    if explanation.rule is not None or not explanation.allow:
        return explanation
    folder, name = os.path.split(expand(written, base=boundary.cwd, home=boundary.home))
    for path in dict.fromkeys((os.path.join(os.path.realpath(folder), name), explanation.target)):
        if found := own(boundary, path):
            return Explanation(path, found.access != "hidden", None, f"{found.access}: {found.reason}", None)
    return explanation


def kind_of(target: str, folder: str) -> Literal["host", "path"]:
    """What somebody in `folder` means by it. Raises UsageError for a URL."""
    if "://" in target:
        raise UsageError(f"{target} is a URL: write its host, as in `skep policy explain example.com:443`")
    if "/" in target or target.startswith((".", "~")) or os.path.lexists(os.path.join(folder, target)):
        return "path"
    return "host"


@command.command()
def schema() -> None:
    """Print the JSON Schema of a policy file.

    \b
    Examples:
        skep policy schema > skep.schema.json
    """
    from skep_policy.schema import json_schema

    as_json(json_schema())
