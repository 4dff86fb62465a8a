"""`skep doctor`: every layer really tried on this machine."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal

import click
import msgspec
from skep_policy.boundary import Boundary
from skep_policy.errors import PolicyError

from .errors import CannotRun, refused
from .evidence.state import gather
from .host import HERE, NO_BACKEND_FIX, Host
from .options import here
from .screen.fold import columns, folded
from .screen.render import one_line


class Check(msgspec.Struct, frozen=True):
    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    usable: bool
    backend: str
    checks: list[Check]


MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


@click.command(short_help="Try every layer on this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option(
    "--sockets", is_flag=True, help="List the host's Unix sockets, and what keeps a worker started here from each."
)
def command(as_json: bool, sockets: bool, **_: Any) -> None:
    """Try every layer of the boundary, the same way a run applies it, and print one line each.

    Exits 0 when the sandbox is usable, 1 when it is not. Each failure comes with the command that fixes it.

    \b
    Examples:
        skep doctor
        skep doctor --json
        skep doctor --sockets
    """
    if sockets:
        show_sockets(as_json, here())
        return
    diagnosis = diagnose(here())
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(diagnosis), indent=2).decode())
    else:
        for check in diagnosis.checks:
            mark, colour = MARKS[check.status]
            line = folded(f"{mark.ljust(5)} {check.id}: {check.detail}", columns(sys.stdout))
            click.echo(click.style(line[: len(mark)], fg=colour) + line[len(mark) :])
            if check.fix:
                click.echo(folded(f"      fix: {check.fix}", columns(sys.stdout)))
        click.echo("The sandbox is usable." if diagnosis.usable else "The sandbox is NOT usable: no worker will start.")
    sys.exit(0 if diagnosis.usable else 1)


def show_sockets(as_json: bool, machine: Host) -> None:
    """Every socket of the host a program here could speak to, and what a worker in this folder would find there."""
    from skep_policy.resolution import resolve

    from . import policies
    from .flags import Flags

    try:
        facts = gather()
        policy = policies.effective(Flags(), facts=facts, project=facts.cwd)
    except PolicyError as error:
        raise refused(error) from None
    try:
        boundary = resolve(policy, facts=facts, workspace=facts.cwd)
        rows = _denied_sockets(boundary) if machine.backend == "seatbelt" else _masked_sockets(boundary)
    except PolicyError as error:
        raise CannotRun(str(error)) from None
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    for row in rows:
        click.echo(one_line(f"{row['status']}  {row['path']}" + (f"  ({row['by']})" if row["by"] else ""), None))
    abstract = "; abstract ones are out of reach in the worker's network namespace"
    click.echo(f"{len(rows)} sockets of the host{abstract if machine.backend == 'bwrap' else ''}.")


def _denied_sockets(boundary: Boundary) -> list[dict[str, str]]:
    from skep_seatbelt import BackendUnavailable, listening

    try:
        paths = listening()
    except BackendUnavailable as error:
        raise CannotRun(str(error)) from None
    rows: list[dict[str, str]] = []
    for path in paths:
        if path in boundary.sockets:
            rows.append({"path": path, "status": "let in", "by": "filesystem.sockets"})
        else:
            rows.append({"path": path, "status": "denied", "by": "the profile lets no other be connected to"})
    return rows


def _masked_sockets(boundary: Boundary) -> list[dict[str, str]]:
    from skep_bwrap.errors import BackendUnavailable
    from skep_bwrap.facts import HostFacts
    from skep_bwrap.mounts import filesystem_ops
    from skep_bwrap.ops import origin

    try:
        host = HostFacts.gather()
        ops = filesystem_ops(boundary, host, own_names=False)
    except BackendUnavailable as error:
        raise CannotRun(str(error)) from None
    rows: list[dict[str, str]] = []
    for path in host.sockets:
        if path in boundary.sockets:
            rows.append({"path": path, "status": "let in", "by": "filesystem.sockets"})
        elif (found := origin(ops, path)) == path:
            rows.append({"path": path, "status": "REACHABLE", "by": ""})
        else:
            by = "covered by /dev/null" if found == "/dev/null" else "its folder is the worker's own, or hidden"
            rows.append({"path": path, "status": "masked", "by": by})
    gone = "removed, or somewhere else and reachable there; --strict lets no Unix socket be made"
    rows += [{"path": name, "status": "NOT FOUND", "by": gone} for name in host.lost]
    return rows


def diagnose(host: Host = HERE) -> Diagnosis:
    """What is true of this machine now."""
    checks = [_state(), _git(host)]
    if host.backend is None:
        missing = Check("platform", "fail", host.missing, NO_BACKEND_FIX)
        return Diagnosis(False, "none", [missing, *checks])
    if host.backend == "seatbelt":
        from skep_seatbelt import probe as seatbelt_probe

        found = seatbelt_probe(sandbox_exec=host.sandbox_exec, platform=host.platform, uid=host.uid)
    else:
        from tempfile import TemporaryDirectory

        from skep_bwrap.probing import probe

        with TemporaryDirectory(prefix="skep-doctor-") as workspace:
            found = probe(os.path.realpath(workspace), environ=gather().environ)
    checks = [Check(c.id, c.status, c.detail, c.fix) for c in found.checks] + checks
    return Diagnosis(found.usable, host.backend, checks)


def _state() -> Check:
    try:
        kept = gather().state_dir
    except CannotRun as error:
        return Check("state", "warn", str(error), "set HOME or XDG_STATE_HOME")
    there = kept
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if os.path.isdir(there) and os.access(there, os.W_OK):
        return Check("state", "ok", f"runs are kept in {os.path.join(kept, 'runs')}")
    return Check(
        "state", "warn", f"{there} cannot be written: `skep run` has nowhere to keep its record", "set XDG_STATE_HOME"
    )


def _git(host: Host) -> Check:
    from shutil import which

    path = which("git")
    if path is None:
        return Check("git", "warn", "git is not on PATH: `skep run` needs it, `skep exec` does not", "install git")
    if host.backend == "seatbelt" and path == "/usr/bin/git" and not _has_developer_tools(host):
        what = "git is macOS's placeholder for one: there are no command line tools; `skep run` needs it"
        return Check("git", "warn", what, "xcode-select --install")
    return Check("git", "ok", path)


def _has_developer_tools(host: Host) -> bool:
    """Asked without starting the placeholder, which would open a dialog."""
    from subprocess import DEVNULL, run

    try:
        return (
            run([host.xcode_select, "-p"], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, check=False).returncode == 0
        )
    except OSError:
        return False
