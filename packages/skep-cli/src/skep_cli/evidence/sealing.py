"""The end of a run's record: digests of all its files, scratch gone, and the same for runs that had no end of their
own.
"""

from __future__ import annotations

from skep_cli.errors import SkepError
from skep_cli.workspace.removal import remove

from . import audit, record
from .audit import Log, now
from .audit import digest as file_digest
from .record import Run
from .state import RunFolder, Runs

SEALED = (
    *("policy.json", "boundary.txt", "worker.log", "patch.diff", "verify.log", "git/skep.json"),
    *("setup-boundary.txt", "setup.log"),
)


def seal_again(folder: RunFolder, run: Run) -> None:
    """Seal a run whose log could not be written a moment ago; what was in the way may be gone. Never raises OSError."""
    try:
        log = Log(folder)
        try:
            files = {name: file_digest(folder.path / name) for name in SEALED}
            log.keep("run.json", run.encode(), "sealed", {"state": run.state, "reason": run.reason, "files": files})
        finally:
            log.close()
    except (OSError, SkepError):
        pass  # the record ends where it ends, and `audit verify` says so


def clear_scratch(folder: RunFolder, *, keep: bool = False) -> list[str]:
    """What a run needs only while it runs is gone, but for the trees with `keep`; what could not be removed is told."""
    problems: list[str] = []
    trees = (folder.workspace, folder.verify, folder.rules, folder.setup)
    unfinished = (folder.git / "objects/pack").glob("tmp_*")  # a git without room leaves what it has written
    for path in (folder.agent, *(() if keep else trees), *unfinished):
        try:
            remove(path)
        except OSError as error:
            problems.append(f"cannot remove {path}: {error.strerror or error}")
    return problems


def clear_dead(runs: Runs) -> None:
    """Runs whose skep was killed are over. One whose worker was about to start is sealed as failed and keeps its
    record, one that was still being prepared goes whole. What goes wrong here is no trouble of today's run.
    """
    for folder in runs.dead():
        clear_scratch(folder)
        checked = audit.check(folder)
        holds = checked.problem is None or checked.problem.torn
        begun = checked.last("starting") or checked.last("setting-up")
        if _unbegun(folder) or (holds and begun is None):
            try:
                runs.discard(folder)
            except OSError:
                pass
            continue
        try:
            run = record.load(folder)
        except SkepError:
            continue
        if run.state == "running":
            run.state, run.reason, run.ended = "failed", "skep was killed while it ran", now()
            seal_again(folder, run)


def _unbegun(folder: RunFolder) -> bool:
    """Whether skep died before the first record was on disk. The head is there before the first line."""
    head = audit.head_of(folder)
    if head is not None:
        return head.count == 0
    try:
        return folder.log.stat().st_size == 0
    except FileNotFoundError:
        return True
