"""The JSON Schema of a policy file, from the very types that load it, for editors and for people."""

from __future__ import annotations

from typing import Any

import msgspec

from .policy import Policy

# What each key means, in the words of the reference. A test holds this to the keys of the types.
DESCRIPTIONS = {
    "filesystem": "What the worker may read and write.",
    "filesystem.write": "Folders and files that are writable besides the workspace. They must exist.",
    "filesystem.protect": "Read-only although a writable folder covers it. `*`, `?` and `**` make a pattern.",
    "filesystem.hide": "Neither readable nor writable. `*`, `?` and `**` make a pattern.",
    "filesystem.grant": "Takes one entry off the built-in hidden set, or off what the host runs by itself.",
    "filesystem.read": "`host`: everything that is not hidden. `minimal`: the system, the toolchain, the roots.",
    "filesystem.git": "Lets the worker commit: objects, references and index are writable, configuration is not.",
    "filesystem.devices": "Devices let in, below /dev.",
    "filesystem.sockets": "Unix sockets of the host let in, one by one.",
    "network": "What the worker may reach. Nothing when `allow` is empty.",
    "network.allow": "Rules: a name, `*.name`, an address, a network or `*`; `:port`, `:*`, or nothing for 80 and 443.",
    "network.deny": "Rules that beat every allow. Without a port they deny every port.",
    "network.private": "Names that may resolve to addresses that are not global. No ports.",
    "network.sni": "`match`: the name in the TLS handshake must be allowed too. `off`: it is not looked at.",
    "network.max-bytes-out": "How much may be sent to one destination in one run, like `50MiB`.",
    "env": "The environment of the worker.",
    "env.pass": "Variables passed on when the caller has them. `*` and `?` make a pattern.",
    "env.set": "Variables with their values.",
    "limits": "What the worker may use up. Unset is no limit, but of `disk-free`.",
    "limits.wall": "Time, like `30m`.",
    "limits.memory": "Memory of all its processes, like `8GiB`.",
    "limits.processes": "Processes at one time.",
    "limits.file-size": "Size of one file, like `10GiB`.",
    "limits.disk-free": "What is left of every disk the worker writes on, like `2GiB`. Unset: 512MiB, or half of what "
    "is left at the start where that is less.",
    "worker": "What runs.",
    "worker.command": "Its words; `{task}` is replaced by the task.",
    "worker.preset": "The name of a built-in worker.",
    "worker.verify": "The words of the command that verifies its patch.",
    "worker.toolchains": "Built-in sets of caches and registries: python, node, rust, go, jvm.",
    "worker.setup": "Commands that run before the worker, one after the other, each split as a shell splits words.",
    "setup": "What the setup may do besides what the worker may.",
    "setup.network": "What the setup may reach, and the worker not; rules as in `network.allow`.",
    "setup.toolchains": "Toolchains of the setup, whose registries the worker does not get.",
    "verify": "What the verification may do.",
    "verify.network": "What the verification may reach; rules as in `network.allow`. Nothing when empty.",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the policy file, self-contained and described."""
    schema: dict[str, Any] = msgspec.json.schema(Policy)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "skep policy"
    definitions: dict[str, Any] = schema["$defs"]
    tables: dict[str, Any] = definitions["Policy"]["properties"]
    for table, reference in tables.items():
        name: str = reference.pop("$ref", None) or reference["allOf"][0]["$ref"]
        tables[table] = {"$ref": name, "description": DESCRIPTIONS[table]}
        properties: dict[str, Any] = definitions[name.rpartition("/")[2]]["properties"]
        for key, value in properties.items():
            value["description"] = DESCRIPTIONS[f"{table}.{key}"]
    return schema
