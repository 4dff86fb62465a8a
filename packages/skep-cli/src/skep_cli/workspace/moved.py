"""What the user did to the repository while the worker ran."""

from __future__ import annotations

from skep_policy.report import Finding

from skep_cli.git import repository
from skep_cli.stages.order import Order

MOVED = "moved"


def head_moved(order: Order) -> list[Finding]:
    """A finding when HEAD is at another commit than the run began at."""
    repo = order.repository
    if repo is None or (now := repository.head_of(order.git, repo)) == repo.head:
        return []
    was = (repo.head or "nothing")[:12]
    return [Finding(MOVED, "HEAD", f"was {was} when the run began and is {(now or 'nothing')[:12]} now")]
