"""What bwrap's last words mean, and the one command that fixes it. Pure: text in, a named failure out."""

from __future__ import annotations

from typing import NamedTuple

from .errors import BackendUnavailable


class Cause(NamedTuple):
    """`words` are alternatives of bwrap's stderr, each a tuple of parts that must all be there (lower case)."""

    check: str
    words: tuple[tuple[str, ...], ...]
    problem: str
    fix: str


APPARMOR_FIX = (
    "install bubblewrap from your distribution and allow /usr/bin/bwrap by an AppArmor profile with `userns,` "
    "(narrow: this one program), or `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` (every program)"
)

# The order is the order of trial: the more specific text stands first.
CAUSES = (
    Cause(
        "bwrap-version",
        (("unknown option",),),
        "this bwrap is too old for the options a boundary needs",
        "install bubblewrap 0.8 or later, or `pip install 'skep-cli[bundled]'`",
    ),
    Cause(
        "bwrap-setuid",
        (("setuid",), ("must be installed setuid",)),
        "this bwrap is a setuid build, or wants to be one",
        "enable user namespaces (`sudo sysctl kernel.unprivileged_userns_clone=1`) and use a bwrap that is not setuid",
    ),
    Cause(
        "apparmor",
        (
            ("setting up uid map", "permission denied"),
            ("failed rtm_newaddr",),
            ("failed rtm_newlink",),
            ("setting up gid map", "permission denied"),
        ),
        "AppArmor restricts unprivileged user namespaces on this host",
        APPARMOR_FIX,
    ),
    Cause(
        "container-apparmor",
        (("failed to make / slave",), ("failed to mount tmpfs",)),
        "an outer container's AppArmor or SELinux profile refuses mounts",
        "start the outer container with `--security-opt apparmor=unconfined` (or a profile that allows mount)",
    ),
    Cause(
        "masked-proc",
        (("can't mount proc",),),
        "an outer container masks /proc, so a new /proc cannot be mounted",
        "start the outer container with `--security-opt systempaths=unconfined` (Kubernetes: procMount: Unmasked)",
    ),
    Cause(
        "user-namespaces",
        (("no space left on device", "namespace"), ("creating new namespace failed", "no space left")),
        "user namespaces are limited to none here",
        "`sudo sysctl user.max_user_namespaces=65536`",
    ),
    Cause(
        "user-namespaces",
        (
            ("creating new namespace failed",),
            ("no permissions to create new namespace",),
            ("unshare", "operation not permitted"),
        ),
        "the kernel or an outer container's seccomp profile refuses a new user namespace",
        "on the host `sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=65536`; "
        "in a container start it with `--security-opt seccomp=unconfined` or a profile that allows unshare and mount",
    ),
    Cause(
        "mount",
        (("can't find source path",), ("can't create file at",), ("can't mkdir",), ("can't bind mount",)),
        "a path of the boundary could not be mounted",
        "see the path in the message; `skep policy show` tells which rule names it",
    ),
    Cause(
        "interpreter",
        (("execvp",),),
        "the shim's Python interpreter cannot be run inside the boundary",
        "install Python outside of the hidden and private folders",
    ),
)


def classify(diagnostics: str, status: int) -> BackendUnavailable:
    """The failure that this text of bwrap's and this exit status mean."""
    said = " ".join(diagnostics.split())[:600]
    lowered = said.lower()
    for cause in CAUSES:
        if any(all(part in lowered for part in parts) for parts in cause.words):
            return BackendUnavailable(f"{cause.problem} ({said})", fix=cause.fix, check=cause.check)
    if status > 128:
        return BackendUnavailable(
            f"the sandbox was killed by signal {status - 128} before the worker ran {said}".strip()
        )
    return BackendUnavailable(
        f"bwrap failed with status {status}: {said or 'it said nothing'}", fix="run `skep doctor`"
    )
