"""What a worker sees at a path after bwrap has carried out its operations, from bwrap's manual alone.

Each mount lies over all that is at its place; `--bind` shows the host's file at a path, read-only where it says so, and
a new tmpfs shows nothing of the host's.
"""

from __future__ import annotations

from collections.abc import Sequence

from skep_bwrap.ops import Bind, Data, Dev, Layered, Link, Op, Proc, RemountReadOnly, Tmpfs


class Seen:
    """`host` is the host's path of what is seen, None when it stands in memory or is a covering device node."""

    def __init__(self, host: str | None, *, writable: bool) -> None:
        self.host = host
        self.writable = writable

    def __repr__(self) -> str:
        return f"Seen({self.host!r}, writable={self.writable})"


def visible(ops: Sequence[Op], path: str) -> Seen:
    top = "/"
    seen = Seen(None, writable=True)
    for op in ops:
        place = op.dest
        inside = path == place or path.startswith(place if place == "/" else place + "/")
        if isinstance(op, RemountReadOnly):
            if top == place:
                seen = Seen(seen.host, writable=False)
        elif inside:
            top = place
            rest = path[len(place) if place != "/" else 0 :]
            match op:
                case Bind("/dev/null", _, _, _) if place != "/dev/null":
                    seen = Seen(None, writable=False)
                case Bind(source, _, mode, _):
                    host = ("" if source == "/" else source) + rest
                    seen = Seen(host or "/", writable=mode != "ro")
                case Layered(lower, _, _, _):
                    seen = Seen(lower + rest, writable=True)
                case Tmpfs() | Proc() | Dev():
                    seen = Seen(None, writable=True)
                case Data() | Link():
                    seen = Seen(None, writable=False)
    return seen
