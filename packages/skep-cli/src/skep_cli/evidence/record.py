"""`run.json`: one run, for later commands and for scripts. What of it is not in the log has its digest there."""

from __future__ import annotations

import datetime
import json
import os
from typing import Any, Literal

import msgspec
from skep_policy.report import Egress, Finding

from skep_cli.errors import SkepError

from .audit import dump
from .state import RunFolder, read_file

MAX_RECORD = 256 << 20
"""Bytes of a `run.json` that are read: it names every file that changed."""

State = Literal["running", "completed", "failed", "timed-out"]
Mode = Literal["sandbox", "workspace"]


class Verification(msgspec.Struct):
    """What the operator's own command said of the patch on a clean workspace."""

    outcome: Literal["passed", "failed", "unavailable", "none"] = "none"
    command: str | None = None
    exit_code: int | None = None
    detail: str = ""
    """What ended it, or kept it from judging; empty for an ordinary exit status."""


class Setup(msgspec.Struct):
    """What became of the commands before the worker: of the one that failed, or of the last."""

    outcome: Literal["passed", "failed"]
    command: str
    exit_code: int


class Verdict(msgspec.Struct):
    """What the operator decided."""

    verdict: Literal["approved", "denied"]
    time: str
    forced: bool = False
    branch: str | None = None
    commit: str | None = None


class Trees(msgspec.Struct):
    """Where a run began and ended, as git objects. `head` is None in an empty repository and outside of one."""

    object_format: str
    repository: bool
    head: str | None
    branch: str | None
    baseline: str
    result: str | None = None


class Run(msgspec.Struct):
    """Everything that is known of a run. Times are UTC texts, `seconds` is from the beginning to the end of it all."""

    id: str
    repo: str
    folder: str
    task: str
    worker: list[str]
    mode: Mode
    started: str
    skep: str
    state: State = "running"
    reason: str | None = None
    ended: str | None = None
    exit_code: int | None = None
    limit: str | None = None
    layers: dict[str, bool | str] = msgspec.field(default_factory=dict[str, bool | str])
    attestation: dict[str, bool | str | int] = msgspec.field(default_factory=dict[str, bool | str | int])
    findings: list[Finding] = msgspec.field(default_factory=list[Finding])
    egress: Egress = msgspec.field(default_factory=Egress)
    results: str = ""
    workspace: str = "copy"
    patch: str | None = None
    files_changed: list[str] = msgspec.field(default_factory=list[str])
    verification: Verification = msgspec.field(default_factory=Verification)
    trees: Trees | None = None
    verdict: Verdict | None = None
    notes: list[str] = msgspec.field(default_factory=list[str])
    setup: Setup | None = None
    """None when there is none."""

    @property
    def seconds(self) -> float | None:
        return None if self.ended is None else between(self.started, self.ended)

    @property
    def approving(self) -> str:
        """The command that approves it."""
        verified = self.state == "completed" and self.verification.outcome == "passed"
        return f"skep approve {self.id}" if verified else f"skep approve --force {self.id}"

    def encode(self) -> bytes:
        return dump(self)

    def document(self, folder: RunFolder) -> dict[str, Any]:
        """What `skep run --json` prints; its keys stay."""
        built = msgspec.to_builtins(self)
        same = ("exit_code", "layers", "attestation", "findings", "egress", "id", "state")
        rest = ("results", "patch", "files_changed", "workspace", "verification")
        made = {**{key: built[key] for key in same}, "audit": str(folder.path), **{key: built[key] for key in rest}}
        return {**made, "setup": built["setup"]} if self.setup else made


def between(start: str, end: str) -> float:
    first, last = (datetime.datetime.fromisoformat(text) for text in (start, end))
    return round((last - first).total_seconds(), 3)


def load(folder: RunFolder) -> Run:
    """The record of a run. Raises SkepError when it is missing or no record; the digest in the log is checked by
    `audit.check`.
    """
    try:
        run = msgspec.convert(json.loads(read_file(folder.record, MAX_RECORD)), Run)
    except OSError as error:
        raise SkepError(f"the run {folder.id} has no record ({folder.record}: {error.strerror})") from error
    except (ValueError, RecursionError) as error:  # msgspec's ValidationError is one
        raise SkepError(f"the record of {folder.id} cannot be read ({folder.record}: {error})") from error
    if run.id != folder.id:
        raise SkepError(f"the record in {folder.path} is that of another run")
    return run


def one_json(document: object) -> str:
    """A document on one line. Names that are no UTF-8 are lone surrogates, as `os.fsdecode` has them."""
    return json.dumps(document, ensure_ascii=True)


def shown_path(path: str, home: str) -> str:
    """A path as people write it."""
    return "~" + path[len(home) :] if home and path.startswith(home.rstrip(os.sep) + os.sep) else path
