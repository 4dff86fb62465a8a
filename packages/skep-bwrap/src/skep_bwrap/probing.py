"""Does the sandbox work here? The production launch on `true`, and a named failure with its fix when it does not."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from skep_policy.boundary import Access, Boundary, Limits, PathRule
from skep_policy.rules import Rules

from .cgroup import hold, release
from .compile import NOT_APART, compile
from .diagnose import APPARMOR_FIX
from .errors import BackendUnavailable
from .facts import HostFacts
from .find import bundled_bwrap, find_bwrap
from .spawn import spawn

RAN: Final = "the launch of production ran `true`"
NO_OVERLAYS: Final = "knows no overlays"
OVERLAY_SECONDS: Final = 20.0
SAMPLED: Final = 200
"""Entries of a folder among which a small file is looked for."""
# Moves a file of the lower layer away (which copies it up and leaves a whiteout) and puts a folder in its place, which
# has to be marked opaque. `$1` is the folder, `$2` the file, maybe empty.
OVERLAY_TRIAL: Final = """
cd "$1" || exit
if [ -n "$2" ]; then mv "./$2" ./.skep-probe-moved && mkdir "./$2" || exit; fi
mkdir ./.skep-probe && rmdir ./.skep-probe
"""
EVERYWHERE: Final = "/etc/passwd"
"""A file that every host has and any program can read, so that hiding one is tried for real."""
DELEGATE: Final = (
    "`systemd-run --user --scope -p Delegate=yes skep ...` where a systemd user manager runs (its cgroups are ours to "
    "divide), or have root give this user a cgroup of its own"
)

TOLD: Final = {
    "processes": "seen: {}",
    "namespaces": "its own: {}",
    "seccomp": "filters in force: {}",
    "writes": "read-only places tried, all of which refused: {}",
    "hidden": "hidden paths tried, none of which opened: {}",
    "mounts": "mounts looked at, each writable only where it should be: {}",
    "sockets": "sockets of this host tried, none of which answered: {}",
    "apart": "the process that holds the worker cannot be traced: {}",
    "descriptors": "open, and no others: {}",
}
"""What an answer of the attestation is the answer to, where it does not say so itself."""


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
    tried, apart = _try_sandbox(path, facts, workspace)
    checks += tried
    if tried[0].status != "fail":
        checks.append(_try_egress(path, facts, workspace, apart=apart))
        checks += _try_limits()
    usable = all(check.status != "fail" for check in checks)
    return Probe(usable, tuple(checks))


def _try_sandbox(path: str, facts: HostFacts, workspace: str) -> tuple[list[Check], bool]:
    """The launch as a whole and each of its layers, and whether the worker can be set apart."""
    first, attestation = _try(path, facts, workspace, "sandbox", transparent=False, proxied=False)
    if first.id != "apart":
        return [first, *_attested(attestation)], True
    second, attestation = _try(path, facts, workspace, "sandbox", transparent=False, proxied=False, apart=False)
    if second.status == "fail":
        return [second], False
    refused = Check("apart", "warn", f"{NOT_APART} ({first.detail})", APPARMOR_FIX)
    return [second, *(check for check in _attested(attestation) if check.id != "apart"), refused], False


def _attested(attestation: Mapping[str, str]) -> list[Check]:
    return [Check(name, "ok", TOLD.get(name, "{}").format(answer)) for name, answer in attestation.items()]


def _try_limits() -> list[Check]:
    """Which limits a cgroup would hold, one made for real and removed."""
    held = hold(Limits(memory=1 << 30, processes=64), f"skep-{os.getpid()}-probe")
    release(held)
    checks: list[Check] = []
    for name, answer in held.layers.items():
        if answer is True:
            checks.append(Check(f"limit-{name}", "ok", "held by a cgroup"))
        elif name == "processes" and os.geteuid() != 0:
            checks.append(Check(f"limit-{name}", "ok", f"held by an rlimit; {answer}"))
        else:
            checks.append(Check(f"limit-{name}", "warn", f"looked at a few times a second; {answer}", DELEGATE))
    return checks


def _boundary(workspace: str, *, filtered: bool) -> Boundary:
    hidden = os.path.realpath(EVERYWHERE)
    return Boundary(
        workspace=workspace,
        cwd=workspace,
        home=workspace,
        uid=os.getuid(),
        gid=os.getgid(),
        roots=(PathRule(workspace, Access.WRITE, "dir"),),
        protects=(),
        hides=(PathRule(hidden, Access.HIDDEN, "file"),) if os.path.isfile(hidden) else (),
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


def _try(
    path: str,
    facts: HostFacts,
    workspace: str,
    name: str,
    *,
    transparent: bool,
    proxied: bool,
    apart: bool = True,
) -> tuple[Check, dict[str, str]]:
    boundary = _boundary(workspace, filtered=proxied)
    handed = _Handed() if proxied else None
    try:
        launch = compile(
            boundary, ["true"], facts=facts, bwrap=path, proxied=proxied, transparent=transparent, apart=apart
        )
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
        return Check(error.check if error.check != "bwrap" else name, "fail", error.problem, error.fix), {}
    finally:
        if handed:
            handed.close()
    if ended.notes and list(ended.notes) != ["every-port"]:
        return Check(name, "warn", "; ".join(dict.fromkeys(ended.notes.values()))), ended.attestation
    if ended.exit_code != 0:
        return Check(name, "fail", f"`true` ended with {ended.exit_code} {ended.limit or ''}".strip()), {}
    return Check(name, "ok", ended.notes.get("every-port", RAN)), ended.attestation


def _try_egress(path: str, facts: HostFacts, workspace: str, *, apart: bool) -> Check:
    """Transparent egress; where the kernel refuses it, explicit proxying, which then is a warning."""
    first, _ = _try(path, facts, workspace, "egress", transparent=True, proxied=True, apart=apart)
    if first.status == "ok" and apart:
        less = "" if first.detail == RAN else f"; {first.detail}"
        return Check("egress", "ok", f"every program reaches the proxy, whether it knows one or not{less}")
    if first.status != "fail":
        return Check("egress", "warn", f"only programs that know a proxy are served: {first.detail}", APPARMOR_FIX)
    second, _ = _try(path, facts, workspace, "egress", transparent=False, proxied=True, apart=apart)
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


def overlay_bwrap(lower: str, folder: str, *, environ: Mapping[str, str], untrusted: Sequence[str] = ()) -> str:
    """The path of a bwrap that can lay a layer of ours over `lower`: the one on PATH, or the bundled one when the other
    knows no overlays.

    Tried for real, with layers in `folder`, which must be on the file system of those to come; what is written there is
    the caller's to remove. Raises BackendUnavailable with why there is none: bwrap knows no overlays, the kernel
    refuses them here, or the files belong to another user and could not be copied up.
    """
    if os.stat(lower).st_uid != os.geteuid():
        raise BackendUnavailable(f"{lower} belongs to another user", check="overlay")
    path = find_bwrap(environ=environ, untrusted=untrusted)
    problem = _try_overlay(path, lower, os.path.join(folder, "first"), environ)
    bundled = bundled_bwrap()
    if problem == NO_OVERLAYS and bundled is not None and bundled != path:
        path = find_bwrap(environ=environ, explicit=bundled, untrusted=untrusted)
        problem = _try_overlay(path, lower, os.path.join(folder, "second"), environ)
    if problem is not None:
        raise BackendUnavailable(f"{path} {problem}", check="overlay")
    return path


def _try_overlay(bwrap: str, lower: str, folder: str, environ: Mapping[str, str]) -> str | None:
    """Why an overlay cannot be had of this bwrap; None when it can."""
    import subprocess

    upper, work = os.path.join(folder, "upper"), os.path.join(folder, "work")
    os.makedirs(upper)
    os.mkdir(work)
    words = [bwrap, "--unshare-user", "--uid", "0", "--gid", "0", "--die-with-parent", "--ro-bind", "/", "/"]
    words += ["--overlay-src", lower, "--overlay", upper, work, lower, "--", "sh", "-c", OVERLAY_TRIAL, "sh"]
    try:
        done = subprocess.run(
            [*words, lower, _small_file(lower)],
            env={"PATH": environ.get("PATH", os.defpath), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=OVERLAY_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be tried: {error}"
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
    if any("Unknown option" in line for line in said):
        return NO_OVERLAYS
    return f"says: {said[0] if said else f'exit status {done.returncode}'}"


def _small_file(folder: str) -> str:
    """The name of the smallest regular file among the first entries; empty when there is none."""
    best, size = "", 1 << 20
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number == SAMPLED:
                break
            info = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(info.st_mode) and info.st_size < size and "\n" not in entry.name:
                best, size = entry.name, info.st_size
    return best
