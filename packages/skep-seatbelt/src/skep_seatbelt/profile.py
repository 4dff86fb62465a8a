"""Boundary -> the rules of a profile. Pure and deterministic.

The order is the meaning, and it is the same under every published reading of the precedence rules:

1. `(allow default)`: what nobody names works as on the host;
2. denials without a filter, one per operation: the ground;
3. allowances with a filter, shallow paths before deep ones;
4. denials with a filter, last: terminals, protects, hides, and the names whose removal would move one of these away.
   Each denies every operation that step 3 allowed by name, since an allowance for a narrow operation is not undone by
   a denial of its class.
"""

from __future__ import annotations

from collections.abc import Iterable

from skep_policy.boundary import Boundary

from .channels import network_rules, process_rules, service_rules, socket_rules
from .files import device_rules, hide_rules, protect_rules, read_rules, rename_rules, terminal_rules, write_rules
from .sbpl import Comment, Item, Rule

GROUND = (
    *("file-write*", "network*", "mach-lookup", "process-info*", "signal", "sysctl-read"),
    *("appleevent-send", "lsopen", "job-creation", "authorization-right-obtain"),
)
"""Denied by default; known to every macOS that skep supports."""

GUARDED_GROUND = (
    *("file-link", "file-clone", "file-mknod", "file-mount", "file-mount-update", "file-unmount", "fs-snapshot*"),
    *("file-chroot", "file-revoke", "fs-rename", "file-issue-extension", "generic-issue-extension"),
    *("file-search", "user-preference-read", "user-preference-write"),
    *("distributed-notification-post", "darwin-notification-post"),
    *("mach-bootstrap", "mach-register", "mach-per-user-lookup", "mach-cross-domain-lookup", "mach-issue-extension"),
    *("mach-host-special-port-set", "mach-host-exception-port-set", "mach-priv-host-port"),
    *("mach-priv-task-port", "mach-task-name", "mach-task-read", "mach-task-inspect"),
    *("ipc-posix-shm*", "ipc-sysv*", "iokit*", "hid-control", "device*", "nvram*", "boot-arg-set"),
    *("system-socket", "system-privilege", "system-kext*", "system-reboot", "system-set-time", "sysctl-write"),
    *("system-acct", "system-audit", "system-automount", "system-chud", "system-debug", "system-fsctl"),
    *("system-kas-info", "system-mac-label", "system-nfssvc", "system-suspend-resume", "system-swap"),
    "necp-client-open",
    *("opendirectory-user-modify",),
)
"""The same, where macOS has the operation.

`file-link` and `file-clone` are operations of their own, outside `file-write*`: a hard link made inside a root would be
a writable name of a file outside. They are denied everywhere, since accounts differ on which end the kernel asks about.
`file-mount` is how a worker gets a file system without rules (a devfs of its own). `mach-bootstrap` is every request to
launchd but a lookup. `system-automount` is what a look at a path below an automounted folder asks for: a daemon outside
would resolve a host and connect to it. `file-search` finds names on a volume whoever may list their folders,
`system-fsctl` does to a file system what has no path, `necp-client-open` is a network beside the sockets. Whatever is
here, profiles that deny by default have denied to every common tool for years.
"""


def rules_for(
    boundary: Boundary,
    *,
    port: int | None,
    tag: str,
    terminal: str | None = None,
    allow_services: Iterable[str] = (),
    reads: Iterable[str] = (),
    host_sockets: Iterable[str] = (),
    listen: bool = False,
) -> tuple[Item, ...]:
    """The profile of a boundary.

    `port` is the proxy's on the loopback, `tag` the run. `terminal` is the worker's own pseudo-terminal, `reads` what
    the start of the worker needs besides the boundary. Programs of the host already listen at `host_sockets`. With
    `listen` servers of the worker may take connections.
    """
    allows = (
        *write_rules(boundary),
        *device_rules(boundary, terminal),
        *read_rules(boundary, reads),
        *network_rules(boundary.rules, port, listen),
        *socket_rules(boundary, host_sockets),
        *service_rules(boundary.rules, tag, allow_services),
        *process_rules(),
    )
    named = {operation for rule in allows if isinstance(rule, Rule) for operation in rule.operations}
    return (
        Comment("what nobody names works as on the host"),
        Rule("allow", ("default",)),
        Comment("the ground: denied unless a rule below allows it"),
        *(Rule("deny", (operation,)) for operation in GROUND),
        *(Rule("deny", (operation,), guarded=True) for operation in GUARDED_GROUND),
        *((Rule("deny", ("file-read*",)),) if boundary.read == "minimal" else ()),
        *allows,
        *terminal_rules(boundary, terminal),
        *protect_rules(boundary, named),
        *rename_rules(boundary),
        *hide_rules(boundary, named),
    )
