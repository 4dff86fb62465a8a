"""Does the sandbox work here? The production launch on `true`, and a named failure with its fix when it does not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules

from .compile import compile
from .errors import BackendUnavailable
from .facts import HostFacts
from .find import find_bwrap
from .spawn import spawn


class Check(msgspec.Struct, frozen=True):
    """One layer tried. `fix` is a command or a sentence, empty when nothing is wrong."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


class Probe(msgspec.Struct, frozen=True):
    usable: bool
    checks: tuple[Check, ...]


def probe(workspace: str, *, environ: Mapping[str, str], bwrap: str | None = None) -> Probe:
    """Try every layer with `workspace` as the writable root; nothing is written to it and nothing is left.

    The launches are those of production: same compiler, filter, guardian and attestation.
    """
    checks: list[Check] = []
    try:
        path = find_bwrap(environ=environ, explicit=bwrap)
    except BackendUnavailable as error:
        return Probe(False, (Check(error.check, "fail", error.problem, error.fix),))
    checks.append(Check("bwrap", "ok", path))
    facts = HostFacts.gather()
    checks.append(_try(path, facts, workspace, "sandbox", transparent=False, proxied=False))
    if checks[-1].status == "ok":
        checks.append(_try_egress(path, facts, workspace))
    usable = all(check.status != "fail" for check in checks)
    return Probe(usable, tuple(checks))


def _boundary(workspace: str, *, filtered: bool) -> Boundary:
    return Boundary(
        workspace=workspace,
        cwd=workspace,
        home=workspace,
        uid=os.getuid(),
        gid=os.getgid(),
        roots=(PathRule(workspace, Access.WRITE, "dir"),),
        protects=(),
        hides=(),
        reads=(),
        watched=(),
        mapped={},
        read="host",
        devices=(),
        sockets=(),
        rules=Rules.build(["probe.invalid"] if filtered else []),
        env={"PATH": os.defpath},
        limits=Limits(wall=10.0),
    )


def _try(path: str, facts: HostFacts, workspace: str, name: str, *, transparent: bool, proxied: bool) -> Check:
    boundary = _boundary(workspace, filtered=proxied)
    handed = _Handed() if proxied else None
    try:
        launch = compile(boundary, ["true"], facts=facts, bwrap=path, proxied=proxied, transparent=transparent)
        sandbox = spawn(
            launch,
            proxy=handed.theirs if handed else None,
            stdin=None,
            stdout=None,
            stderr=None,
            wall=boundary.limits.wall,
        )
        if handed:
            handed.answer()
        ended = sandbox.wait()
    except BackendUnavailable as error:
        return Check(error.check if error.check != "bwrap" else name, "fail", error.problem, error.fix)
    finally:
        if handed:
            handed.close()
    if ended.notes:
        return Check(name, "warn", "; ".join(ended.notes.values()))
    if ended.exit_code != 0:
        return Check(name, "fail", f"`true` ended with {ended.exit_code} {ended.limit or ''}".strip())
    return Check(name, "ok", ", ".join(f"{key}: {value}" for key, value in ended.attestation.items()))


def _try_egress(path: str, facts: HostFacts, workspace: str) -> Check:
    """Transparent egress; where the kernel refuses it, explicit proxying, which then is a warning."""
    first = _try(path, facts, workspace, "egress", transparent=True, proxied=True)
    if first.status != "fail":
        return first
    second = _try(path, facts, workspace, "egress", transparent=False, proxied=True)
    if second.status == "fail":
        return second
    return Check("egress", "warn", f"only programs that know a proxy are served: {first.detail}", first.fix)


class _Handed:
    """Stands in for a proxy: takes the listeners, says go, and forgets them."""

    def __init__(self) -> None:
        import socket

        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(10.0)

    def answer(self) -> None:
        import socket

        self.theirs.close()
        try:
            _, fds, _, _ = socket.recv_fds(self.ours, 65536, 250)
            for fd in fds:
                os.close(fd)
            if fds:
                self.ours.sendall(b"go\n")
        except OSError:
            pass  # the launch fails, and `wait` says why

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
