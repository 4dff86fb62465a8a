"""What one policy says, key by key: the form in which policies are checked, layered and resolved.

Keys are dotted and kebab-case, as in the file (`network.allow`). `Policy` is the same as tables, for those who read or
write one.
"""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import Policy

SET = "env.set."
"""What the key of one variable that is set begins with."""


class Written(Value):
    """`lists` add up over the layers; of `values` the last layer has it, and what is not written is not in it."""

    lists: dict[str, tuple[str, ...]] = {}
    values: dict[str, object] = {}


def written(policy: Policy | Written) -> Written:
    """What a policy says."""
    if isinstance(policy, Written):
        return policy
    files, network, limits, worker = policy.filesystem, policy.network, policy.limits, policy.worker
    lists = {
        "filesystem.write": files.write,
        "filesystem.protect": files.protect,
        "filesystem.hide": files.hide,
        "filesystem.grant": files.grant,
        "filesystem.devices": files.devices,
        "filesystem.sockets": files.sockets,
        "network.allow": network.allow,
        "network.deny": network.deny,
        "network.private": network.private,
        "env.pass": policy.env.pass_,
        "worker.toolchains": worker.toolchains,
        "worker.setup": worker.setup,
        "setup.network": policy.setup.network,
        "setup.toolchains": policy.setup.toolchains,
        "verify.network": policy.verify.network,
    }
    values = {
        "filesystem.read": files.read,
        "filesystem.git": files.git,
        "network.sni": network.sni,
        "network.max-bytes-out": network.max_bytes_out,
        "limits.wall": limits.wall,
        "limits.memory": limits.memory,
        "limits.processes": limits.processes,
        "limits.file-size": limits.file_size,
        "limits.disk-free": limits.disk_free,
        "worker.command": worker.command,
        "worker.preset": worker.preset,
        "worker.verify": worker.verify,
        **{f"{SET}{name}": value for name, value in policy.env.set.items()},
    }
    return Written(lists, {key: value for key, value in values.items() if value is not None})


def as_policy(said: Policy | Written) -> Policy:
    """The same as tables."""
    if not isinstance(said, Written):
        return said
    import msgspec

    from .policy import Policy

    tables: dict[str, dict[str, object]] = {table: {} for table in Policy.__struct_encode_fields__}
    for key, items in said.lists.items():
        table, _, name = key.partition(".")
        tables[table][name] = items
    variables: dict[str, object] = {}
    for key, value in said.values.items():
        table, _, name = key.partition(".")
        if key.startswith(SET):
            variables[key[len(SET) :]] = value
        else:
            tables[table][name] = value
    tables["env"]["set"] = variables
    return msgspec.convert(tables, Policy)
