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
    "limits.wall": Key("enforced", "by skep, outside the sandbox"),
    "worker.command": Key("enforced", "the same on every system"),
    "worker.preset": Key("enforced", "the same on every system"),
    "worker.verify": Key("enforced", "the same on every system"),
    "worker.toolchains": Key("enforced", "the same on every system"),
    "worker.setup": Key("enforced", "the same on every system"),
    "setup.toolchains": Key("enforced", "the same on every system"),
}
"""Keys that no backend has a hand in."""
