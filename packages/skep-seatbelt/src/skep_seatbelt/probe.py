"""Can a worker be held here? Asked by trying, never by version."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from typing import Literal

import msgspec
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules

from .compile import SANDBOX_EXEC, compile
from .diagnose import NESTED, NESTED_FIX
from .errors import BackendUnavailable
from .facts import settle
from .spawn import Ended, first_program, new_tag, spawn

PROBE_SECONDS = 20.0
"""A nested sandbox-exec was seen to hang; a healthy one takes a tenth of a second."""


class Check(msgspec.Struct, frozen=True):
    """One thing that was tried. `fix` is a command or a sentence, empty when there is nothing to do."""

    id: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


class Probe(msgspec.Struct, frozen=True):
    """What was tried, in order; nothing after the first failure was. `usable` when nothing failed."""

    usable: bool
    checks: tuple[Check, ...]


def probe(
    *,
    sandbox_exec: str = SANDBOX_EXEC,
    platform: str = sys.platform,
    nested: bool | None = None,
    uid: int | None = None,
) -> Probe:
    """Starts `/usr/bin/true` under a production profile, after what can be known before has been looked at.

    `nested` says whether this process is in a sandbox already; asked of the system when None. Looked at first, since
    a nested sandbox-exec may hang.
    """
    checks = [_platform(platform)]
    if checks[-1].status == "ok":
        checks += _looked_at(sandbox_exec, os.getuid() if uid is None else uid, nested)
    if checks[-1].status == "ok":
        checks += _held(sandbox_exec)
    return Probe(all(check.status != "fail" for check in checks), tuple(checks))


def blocker(*, sandbox_exec: str = SANDBOX_EXEC, uid: int, nested: bool | None = None) -> Check | None:
    """What is known to make a launch fail, found without one; None when nothing is."""
    return next((check for check in _looked_at(sandbox_exec, uid, nested) if check.status == "fail"), None)


def _looked_at(sandbox_exec: str, uid: int, nested: bool | None) -> list[Check]:
    """What can be known without a launch, up to the first failure."""
    checks = [_present(sandbox_exec)]
    if checks[-1].status == "ok":
        checks.append(_user(uid))
    if checks[-1].status == "ok":
        checks.append(_alone(in_sandbox() if nested is None else nested))
    return checks


def in_sandbox() -> bool:
    """Whether this process runs in a Seatbelt sandbox; never off macOS."""
    return sys.platform == "darwin" and ctypes.CDLL(None).sandbox_check(os.getpid(), None, 0) == 1


def _platform(platform: str) -> Check:
    if platform == "darwin":
        return Check("platform", "ok", "macOS")
    return Check("platform", "fail", f"Seatbelt is part of macOS, and this is {platform}", "use skep-bwrap on Linux")


def _present(path: str) -> Check:
    if os.path.isabs(path) and os.access(path, os.X_OK):
        return Check("sandbox-exec", "ok", path)
    return Check("sandbox-exec", "fail", f"{path} is missing", "it is part of macOS; reinstall the system's tools")


def _user(uid: int) -> Check:
    if uid:
        return Check("user", "ok", f"uid {uid}")
    return Check("user", "fail", "a profile does not hold a worker that is root", "run skep as an ordinary user")


def _alone(nested: bool) -> Check:
    if nested:
        return Check("nested", "fail", NESTED, NESTED_FIX)
    return Check("nested", "ok", "not in a sandbox yet")


def _held(sandbox_exec: str) -> list[Check]:
    """The production profile around a program that does nothing: the shim inside tries the boundary."""
    with tempfile.TemporaryDirectory(prefix="skep-probe-") as folder:
        real = os.path.realpath(folder)
        root = os.path.join(real, "root")
        secret = os.path.join(real, "secret")
        os.mkdir(root)
        with open(secret, "wb"):
            pass
        try:
            ended = _run(sandbox_exec, folder=real, root=root, secret=secret)
        except BackendUnavailable as error:
            return [Check(error.check, "fail", error.problem, error.fix)]
    if ended.limit or ended.exit_code:
        detail = f"a program that does nothing ended with {ended.exit_code} ({ended.limit or 'by itself'})"
        return [Check("launch", "fail", detail, "`skep doctor` again; if it stays, report it with `sw_vers`")]
    checks = [Check("launch", "ok", "a program was started under a production profile")]
    for name, answer in ended.attestation.items():
        checks.append(
            Check(f"inside-{name}", "ok" if answer is True else "warn", "held" if answer is True else str(answer))
        )
    if ended.left:
        checks.append(Check("leftovers", "fail", f"{ended.left} processes could not be ended"))
    return checks


def _run(sandbox_exec: str, *, folder: str, root: str, secret: str) -> Ended:
    boundary = settle(
        Boundary(
            workspace=root,
            cwd=root,
            home=folder,
            uid=os.getuid() or 1,
            gid=os.getgid(),
            roots=(PathRule(root, Access.WRITE, "dir"),),
            protects=(),
            hides=(PathRule(secret, Access.HIDDEN, "file"),),
            reads=(),
            watched=(),
            mapped={},
            read="host",
            devices=(),
            sockets=(),
            rules=Rules(),
            env={"PATH": "/usr/bin:/bin", "TMPDIR": root},
            limits=Limits(wall=PROBE_SECONDS),
        )
    )
    tag = new_tag()
    python, shim, reads = first_program()
    launch = compile(boundary, ["true"], tag=tag, python=python, shim=shim, reads=reads, sandbox_exec=sandbox_exec)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return spawn(launch, tag=tag, stdin=null, stdout=null, stderr=null, wall=PROBE_SECONDS, folder=folder).wait()
    finally:
        os.close(null)
