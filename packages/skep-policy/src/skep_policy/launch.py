"""What is spawned. `compile(boundary, ...)` of a backend returns one; nothing in it depends on when it is spawned."""

from __future__ import annotations

import msgspec


class Launch(msgspec.Struct, frozen=True):
    """A process to start.

    `argv` is the outer command. Where an element contains `{fd:NAME}`, the spawner writes the number of a descriptor
    that yields `files[NAME]`. `config` is what the shim reads from its control descriptor before it does anything: the
    worker's own argv, environment and folder stand there, so that no secret is in any argv. `evidence` is the text
    kept as `boundary.txt`.
    """

    argv: tuple[str, ...]
    files: dict[str, bytes]
    config: bytes
    evidence: str
