"""What is spawned. `compile(boundary, ...)` of a backend returns one; nothing in it depends on when it is spawned."""

from __future__ import annotations

from .value import Value


class Launch(Value):
    """A process to start.

    `argv` is the outer command and `args` what it reads from a descriptor (bwrap's `--args`), where it takes options
    so. An element may hold `{fd:NAME}`: the spawner writes there the number of a descriptor that yields
    `files[NAME]`. `config` is what the shim reads from a descriptor before it does anything: the worker's own argv,
    environment and folder stand there, so that no secret is in any argv. `destinations` are pairs (root, path) of the
    host: below the writable root, path may have no link on its way, which is checked just before the spawn. `layers`
    is what is in force by construction, `evidence` the text kept as `boundary.txt`.
    """

    argv: tuple[str, ...]
    args: tuple[str, ...]
    files: dict[str, bytes]
    config: bytes
    destinations: tuple[tuple[str, str], ...]
    layers: dict[str, bool | str]
    evidence: str
