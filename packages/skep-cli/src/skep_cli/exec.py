"""`skep exec`: one command in place, in the boundary. Nothing here imports click: it is on the path of every command
of an agent.
"""

from __future__ import annotations

import os
import sys

from skep_bwrap.errors import BackendUnavailable
from skep_policy.boundary import Access, Boundary
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Effective
from skep_policy.report import LOST, Report, limit_remedy, limit_words
from skep_policy.resolution import resolve
from skep_policy.value import replace

from . import policies
from .flags import Flags
from .host import HERE, Host
from .session import Outcome, launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .execstate import Copies
    from .reportfile import Before, ReportFile

CANNOT_RUN = 125
TIMED_OUT = 124
TOLD = 20
"""Findings told on the terminal: a worker can make thousands."""
CUT_SHORT = 1
"""As of a command that could not write its own output."""


def execute(flags: Flags, command: list[str], host: Host | None = None) -> int:
    """Run the command in the current folder, which is its one writable root. Returns the exit status of this
    process.
    """
    host = host or HERE
    copies: Copies | None = None
    before: Before | None = None
    if flags.report is not None:
        from .reportfile import Before

        before = Before(flags.report)
    try:
        try:
            facts = Facts.gather()
        except PolicyError as error:
            return complain(str(error))
        policy = policies.effective(flags, facts=facts, project=facts.cwd)
        own: dict[str, str] = {}
        if flags.preset is not None:
            from .endpoints import shut
            from .execstate import Copies
            from .presets import load

            copies = Copies(preset := load(flags.preset, facts), facts)
            own = copies.variables
            for line in shut(preset, policy, facts):
                complain(line)
        return _execute(flags, command, facts, policy, own, host)
    except PolicyError as error:
        from .refusals import said, status_of

        complain(said(error))
        return status_of(error)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}")
    finally:
        if copies is not None:
            for line in copies.remove():
                complain(line)
        if before is not None:
            before.remove_unwritten()


def _execute(flags: Flags, command: list[str], facts: Facts, policy: Effective, own: dict[str, str], host: Host) -> int:
    """`own` are folders for this command, by the variables that name them."""

    def resolved() -> Boundary:
        extra = tuple(own.values())
        return resolve(policy, facts=facts, workspace=facts.cwd, extra_roots=extra, strict=flags.strict)

    try:
        boundary = resolved()
        if boundary.access_to(os.path.realpath(facts.state_dir)) == Access.WRITE:
            # It is not there yet and would be the worker's to make; once it is, it is hidden.
            os.makedirs(facts.state_dir, mode=0o700, exist_ok=True)
            boundary = resolved()
        boundary = replace(boundary, env={**boundary.env, **own})
    except PolicyError as error:
        return refuse(error)
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}")
    told = (*policies.withheld_lines(policy, facts.cwd), *policies.unset_lines(flags, facts), *boundary.notes)
    for line in told:
        complain(line)
    report: ReportFile | None = None
    try:
        if flags.report is not None:
            from .reportfile import ReportFile

            try:
                report = ReportFile(os.path.join(facts.cwd, flags.report), boundary)
            except OSError as error:
                return complain(f"--report {flags.report}: {error.strerror or error}: name a file that can be written")
        outcome = launch(
            boundary,
            command,
            quarantine=os.path.join(facts.state_dir, "quarantine", str(os.getpid())),
            always_proxy=True,  # with nothing allowed it denies at once and by name; resolvers would try for a minute
            host=host,
        )
    except BackendUnavailable as error:
        return complain(str(error))
    except PolicyError as error:
        return refuse(error)
    except OSError as error:
        return complain(f"{error.filename or 'sandbox'}: {error.strerror or error}")
    status = TIMED_OUT if outcome.timed_out else outcome.exit_code
    if outcome.cut_short and status == 0:
        status = CUT_SHORT
    if report is not None:
        import msgspec

        try:
            report.write(msgspec.json.format(msgspec.json.encode(as_report(outcome, status)), indent=2) + b"\n")
        except OSError as error:  # what stands there may be the worker's
            status = complain(f"{flags.report}: the report cannot be written: {error.strerror or error}")
    for line in closing_lines(outcome, command, _registries(outcome, command, facts, boundary)):
        complain(line)
    if outcome.exit_code and any("/tmp" in word for word in (*command, facts.environ.get("PATH", ""))):
        from .private import unseen

        for line in unseen(boundary, command, facts.environ):
            complain(line)
    if outcome.exit_code:
        from .owners import closed_to_worker

        if why := closed_to_worker(boundary.workspace):
            complain(why)
    return status


def as_report(outcome: Outcome, status: int) -> Report:
    return Report(
        exit_code=status,
        layers=outcome.layers,
        attestation=outcome.attestation,
        findings=outcome.findings,
        egress=outcome.egress,
    )


def _registries(outcome: Outcome, command: list[str], facts: Facts, boundary: Boundary) -> dict[tuple[str, int], str]:
    """Of what was denied, the registries of the programs the command names, each with its toolchain."""
    if not any(denied.reason == "not-listed" for denied in outcome.egress.denied):
        return {}
    from .toolchains.whose import named, whose

    writable = [root.path for root in boundary.roots]
    return whose(outcome.egress.denied, facts=facts, writable=writable, among=named(command))


def closing_lines(
    outcome: Outcome, command: list[str], registries: dict[tuple[str, int], str] | None = None
) -> list[str]:
    """What a person should know at the end, a line each: why it did not run, which limit hit, what was denied, what
    appeared. `registries` are those of a toolchain.
    """
    lines: list[str] = []
    if outcome.exec_error is not None:
        quoted = len(command) == 1 and len(command[0].split()) > 1
        hint = "; no shell reads it: leave out the quotes, or write sh -c '...'" if quoted else ""
        lines.append(f"{command[0] or repr(command[0])}: {os.strerror(outcome.exec_error)}{hint}")
    if outcome.lost:
        lines.append(LOST)
    if outcome.output_error is not None:
        lines.append(f"not all of the output arrived: {os.strerror(outcome.output_error)}")
    if outcome.limit is not None:
        lines.append(f"{limit_words(outcome.limit)}; {limit_remedy(outcome.limit)}")
    if outcome.egress.denied or outcome.egress.allowed:
        from .screen.told import egress_lines

        lines += egress_lines(outcome.egress, registries)
    # What was moved away comes first: a worker can make any number of the others.
    found = sorted(outcome.findings, key=lambda finding: finding.kind == "appeared")
    lines += [f"{finding.path}: {finding.kind}: {finding.detail}" for finding in found[:TOLD]]
    if len(found) > TOLD:
        lines.append(f"{len(found) - TOLD} more findings; --report has them")
    return lines


def refuse(error: PolicyError) -> int:
    """The status of a boundary that this machine cannot hold, once that is told."""
    from .refusals import said

    return complain(said(error))


def complain(line: str) -> int:
    """One line on stderr, without what a terminal would act on. Returns the exit status of a launch that did not
    happen.
    """
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    text = f"skep: {text}"
    if sys.stderr.isatty():
        from .screen.fold import columns, folded

        text = folded(text, columns(sys.stderr))
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    return CANNOT_RUN
