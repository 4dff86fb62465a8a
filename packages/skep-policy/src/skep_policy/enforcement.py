"""What a backend makes of one key of a policy. Each has a table of all of them (`KEYS`); none may be ignored."""

from __future__ import annotations

from typing import Literal

import msgspec


class Key(msgspec.Struct, frozen=True):
    """`enforced` is what the policy's reference says; `differs` is enforced, with a limit or a difference that `how`
    states; `refused` makes a launch fail. `how` is for people.
    """

    status: Literal["enforced", "differs", "refused"]
    how: str


SAME_EVERYWHERE: dict[str, Key] = {
    "network.deny": Key("enforced", "by the proxy"),
    "network.private": Key("enforced", "by the proxy"),
    "network.sni": Key("enforced", "by the proxy"),
    "network.max-bytes-out": Key("enforced", "by the proxy"),
    "limits.wall": Key("enforced", "by the process that starts the worker"),
    "worker.command": Key("enforced", "as everywhere"),
    "worker.preset": Key("enforced", "as everywhere"),
    "worker.verify": Key("enforced", "as everywhere"),
    "worker.toolchains": Key("enforced", "as everywhere"),
    "worker.setup": Key("enforced", "as everywhere"),
    "setup.toolchains": Key("enforced", "as everywhere"),
}
"""Keys that no backend has a hand in."""
