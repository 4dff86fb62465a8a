"""A boundary by the folders that are really there. Pure.

macOS shows a process no folder at the path of another. So where Linux lets a run's copy stand at the repository's own
path, here the worker works in the copy, and every rule about the path is a rule about the copy. What was hidden at the
path stays hidden there as well: the original is still there to be read.
"""

from __future__ import annotations

from skep_policy import replace
from skep_policy.boundary import Boundary, PathRule, below

from .keys import Unenforceable


def at_their_place(boundary: Boundary) -> Boundary:
    """The boundary without `mapped`. Raises Unenforceable for an overlay."""
    if boundary.overlays:
        raise Unenforceable(
            f"nothing can be laid over {min(boundary.overlays)} on macOS; use a workspace by copy (--workspace copy)",
            key="workspace",
        )
    if not boundary.mapped:
        return boundary
    deepest_first = sorted(boundary.mapped.items(), key=lambda item: -len(item[0]))

    def real(path: str) -> str:
        for seen, folder in deepest_first:
            if below(path, seen):
                return folder + path[len(seen) :]
        return path

    def rules(old: tuple[PathRule, ...]) -> tuple[PathRule, ...]:
        moved = (replace(rule, path=real(rule.path)) for rule in old)
        return tuple(dict.fromkeys(moved))

    env = dict(boundary.env)
    if "PATH" in env:
        env["PATH"] = ":".join(map(real, env["PATH"].split(":")))
    return replace(
        boundary,
        workspace=real(boundary.workspace),
        cwd=real(boundary.cwd),
        roots=rules(boundary.roots),
        protects=rules(boundary.protects),
        hides=tuple(dict.fromkeys((*rules(boundary.hides), *boundary.hides))),
        reads=rules(boundary.reads),
        watched=tuple(replace(one, path=real(one.path)) for one in boundary.watched),
        sockets=tuple(map(real, boundary.sockets)),
        links={real(link): text for link, text in boundary.links.items()},
        known=tuple(map(real, boundary.known)),
        mapped={},
        env=env,
    )
