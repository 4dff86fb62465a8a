"""What each policy key means on Linux: enforced, or enforced with a limit that is said here. None is ignored."""

from __future__ import annotations

from typing import Final

from skep_policy.enforcement import SAME_EVERYWHERE, Key

KEYS: Final[dict[str, Key]] = {
    **SAME_EVERYWHERE,
    "filesystem.write": Key("enforced", "mounted writable, everything else read-only"),
    "filesystem.protect": Key("enforced", "mounted read-only over its root"),
    "filesystem.hide": Key("enforced", "covered by something that can neither be read nor written"),
    "filesystem.grant": Key("enforced", "one cover fewer"),
    "filesystem.read": Key("enforced", '"minimal" mounts the listed folders and nothing else'),
    "filesystem.git": Key("enforced", "by the paths it protects"),
    "filesystem.devices": Key("enforced", "the node is mounted into a new /dev"),
    "filesystem.sockets": Key("enforced", "left open among the covered ones"),
    "network.allow": Key(
        "differs",
        "no route out of the network namespace; programs that ignore the proxy settings are served where the kernel "
        "allows, and reach nothing elsewhere",
    ),
    "env.pass": Key("enforced", "the environment is made anew"),
    "env.set": Key("enforced", "the environment is made anew"),
    "limits.memory": Key(
        "differs",
        "by a cgroup where one is delegated; else the sum is looked at several times a second, and the kernel holds "
        "each process on its own",
    ),
    "limits.processes": Key(
        "differs", "by a cgroup where one is delegated, else RLIMIT_NPROC; root, which does not heed it, is looked at"
    ),
    "limits.file-size": Key("enforced", "RLIMIT_FSIZE, and of files that output is relayed to"),
    "limits.disk-free": Key("enforced", "looked at several times a second, more often the less is left"),
    "setup.network": Key("differs", "as network.allow"),
    "verify.network": Key("differs", "as network.allow"),
}
