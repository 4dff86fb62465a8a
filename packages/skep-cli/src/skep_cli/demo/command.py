"""`skep demo`: the whole story on a throwaway repository, told step by step and looked at from outside.

A scripted worker mends a failing test and tries to break out on the way, through the real `skep run`. Whether an
attempt got through is never what the worker says: it is a file that changed, a connection that was counted, a process
that is still there. One that did is a failure of the demo, and so is a worker that did not even try: nothing may hold
because everything is broken.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from skep_cli.errors import CannotRun, SkepError
from skep_cli.evidence.state import gather
from skep_cli.git.hostgit import find_git
from skep_cli.screen.render import Page, one_line
from skep_cli.stages.interrupts import Ending, Interrupts
from skep_cli.workspace.removal import remove

from .stage import DOMAIN, Stage, port

STORY = {
    "write": ("write to a file outside its workspace", "everything but its own roots is read-only"),
    "service": ("connect to a service on this machine's loopback", "it has a loopback of its own"),
    "socket": ("connect to a Unix socket of this machine", "listening sockets of the host are covered"),
    "domain": (f"reach {DOMAIN}", "not in the allowlist"),
    "secret": ("read a key in ~/.ssh", "credential stores are hidden"),
    "hook": ("plant a git hook and a git setting that run code", "the repository's own .git is out of reach"),
    "process": ("leave a process behind", "every process ends with the run"),
}


@click.command("demo", short_help="See the whole story on a throwaway repository.")
@click.option("--keep", is_flag=True, help="Keep the throwaway folder and say where it is.")
@click.option(
    "--execution-mode",
    "mode",
    type=click.Choice(["sandbox", "workspace"]),
    default="sandbox",
    show_default=True,
    help="`workspace` tells the story without the boundary: attempts get through, and the demo fails.",
)
def command(keep: bool, mode: str) -> None:
    """Show a run from a failing test to a verified branch, with a worker that tries to break out on the way.

    Everything happens in a throwaway folder; your files, your home and your network are not touched. It succeeds only
    if every attempt was stopped.

    \b
    Examples:
        skep demo
        skep demo --keep
    """
    facts = gather()
    program = find_git(facts.environ)
    place = facts.xdg("CACHE") + "/skep"  # not the state folder, which is hidden from every worker
    made = [folder for folder in (place, os.path.dirname(place)) if not os.path.lexists(folder)]
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        base = Path(tempfile.mkdtemp(prefix="demo-", dir=place))
    except OSError as error:
        raise CannotRun(f"cannot use {place} ({error.strerror}): make it yours, or set XDG_CACHE_HOME") from None
    page, interrupts = Page(), Interrupts()
    try:
        interrupts.install()
        with Stage(base, program, facts.environ) as stage, interrupts.breakable():
            tell(stage, mode, page)
    except Ending as error:
        raise SkepError("interrupted", exit_code=error.exit_code) from None
    finally:
        if keep:
            page.line(f"kept: {base}")
        else:
            remove(base)
            for folder in made:
                with suppress(OSError):  # something else has come to live there
                    os.rmdir(folder)


class Attempt(msgspec.Struct):
    """What one attempt came to: by the worker's account, and as seen from outside."""

    name: str
    answer: str
    tried: bool
    through: bool


def observe(stage: Stage, run: dict[str, Any], *, bounded: bool) -> list[Attempt]:
    """Every attempt, looked at from outside after the run."""
    audit = Path(run["audit"])
    try:
        told = {
            str(item["name"]): str(item["answer"])
            for item in json.loads((audit / "results/attempts.json").read_bytes())
        }
    except (OSError, ValueError, KeyError, TypeError):
        told = {}
    denied = {item["host"] for item in run["egress"]["denied"]}
    allowed = {item["host"] for item in run["egress"]["allowed"]}
    through = {
        "write": stage.marker.read_text() != "untouched\n",
        "service": stage.closed.reached > 0,
        "socket": stage.socket.reached > 0,
        "domain": DOMAIN in allowed or told.get("domain", "").startswith("status"),
        "secret": any(stage.token.encode() in content for content in evidence(audit)),
        "hook": hook_runs(stage),
        "process": still_there(stage.tag),
    }
    tried = {name for name in told if name != "domain" or not bounded or DOMAIN in denied}
    return [Attempt(name, told.get(name, "it did not say"), name in tried, got) for name, got in through.items()]


def evidence(audit: Path) -> list[bytes]:
    """Everything the worker could have left a secret in: results, patch, output."""
    paths = [*(audit / "results").rglob("*"), *audit.iterdir()]
    return [path.read_bytes() for path in paths if path.is_file() and not path.is_symlink()]


def hook_runs(stage: Stage) -> bool:
    """Whether git, used on the repository as anyone would, runs what was planted."""
    stage.git("status")
    stage.git("checkout", "-q", "-b", "elsewhere")
    stage.git("checkout", "-q", "main")
    return stage.ran.exists() or (stage.repo / ".git/hooks/post-checkout").exists()


def still_there(tag: str) -> bool:
    """Whether a process of the host has the tag in its command line."""
    if not os.path.isdir("/proc/self"):
        return tag in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and tag.encode() in Path("/proc", entry, "cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def tell(stage: Stage, mode: str, page: Page) -> None:
    """The story, start to end. Raises SkepError when it does not end well."""
    page.line("A worker nobody trusts mends a failing test, and tries to break out on the way.", "bold")
    page.heading("1. A throwaway repository with a failing test")
    before = subprocess.run(stage.test(), cwd=stage.repo, env=stage.env, capture_output=True, check=False)
    page.line(f"   calc.py: add(a, b) returns a - b; the test {'passes?!' if before.returncode == 0 else 'fails'}")
    page.heading("2. The run")
    words = ["run", ".", "mend the failing test", "--worker", shlex.join([stage.python, "-I", "-S", ".demo/agent.py"])]
    words += ["--allow", f"localhost:{port(stage.open)}", "--verify", shlex.join(stage.test()), "--wall", "60s"]
    if mode != "sandbox":
        words += ["--execution-mode", mode]
    page.line(f"   skep {shlex.join(words)}", "cyan")
    done = stage.skep(*words, "--json")
    try:
        run: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise SkepError(f"the run gave no result: {one_line(done.stderr.strip()[-300:])}") from None
    page.line(f"   {run['state']}, exit status {run['exit_code']}; in force: {in_force(run)}")
    attempts = _attempts(stage, run, page, bounded=mode == "sandbox")
    branch = _outcome(stage, run, page)
    _ending(run, attempts, branch, stage, page)


def in_force(run: dict[str, Any]) -> str:
    return ", ".join(sorted(name for name, state in run["layers"].items() if state is True)) or "NOTHING"


def _attempts(stage: Stage, run: dict[str, Any], page: Page, *, bounded: bool) -> list[Attempt]:
    page.heading("3. What the worker tried, as seen from outside")
    page.line(f"   use the one service it was allowed: {'it got an answer' if stage.open.reached else 'NO ANSWER'}")
    attempts = observe(stage, run, bounded=bounded)
    for attempt in attempts:
        what, why = STORY[attempt.name]
        page.line(f"   {what}")
        if attempt.through:
            page.line("      GOT THROUGH", "red")
        elif not attempt.tried:
            page.line("      was not tried, or left no trace", "red")
        else:
            page.line(f"      stopped: {why}" if bounded else "      did not get through", "green")
        page.line(f"      it saw: {one_line(attempt.answer, 90)}", "dim")
    return attempts


def _outcome(stage: Stage, run: dict[str, Any], page: Page) -> str | None:
    page.heading("4. The patch, without what it tried")
    for line in Path(run["patch"]).read_text(errors="replace").splitlines() if run["patch"] else ["(none)"]:
        page.line(f"   {line}", *([colour] if (colour := {"+": "green", "-": "red"}.get(line[:1])) else []))
    page.heading("5. Verification, on a clean workspace without network")
    verification = run["verification"]
    page.line(f"   {verification['command']}: {verification['outcome']}")
    page.heading("6. The verdict")
    words = ["approve", run["id"]]
    done = stage.skep(*words)
    page.line(f"   skep {shlex.join(words)}", "cyan")
    for line in (done.stdout or done.stderr).strip().splitlines():
        page.line(f"   {line.replace(str(stage.base), '…')}")
    return f"skep/{run['id']}" if done.returncode == 0 else None


def _ending(run: dict[str, Any], attempts: list[Attempt], branch: str | None, stage: Stage, page: Page) -> None:
    problems = [f"the worker managed to {STORY[attempt.name][0]}" for attempt in attempts if attempt.through]
    problems += [
        f"the worker did not try to {STORY[attempt.name][0]}"
        for attempt in attempts
        if not attempt.tried and not attempt.through
    ]
    if not stage.open.reached:
        problems.append("the one allowed service was not reached either")
    if run["state"] != "completed" or run["verification"]["outcome"] != "passed":
        problems.append("the run was not completed and verified")
    if run["files_changed"] != ["calc.py"]:
        problems.append(f"the patch holds {', '.join(run['files_changed']) or 'nothing'}")
    if branch is None or "a + b" not in stage.git("show", f"{branch}:calc.py") or stage.git("status", "--porcelain"):
        problems.append("the branch is not what it should be")
    if stage.skep("audit", "verify", run["id"]).returncode:
        problems.append("the record does not hold")
    page.line()
    if problems:
        broken = any(attempt.through for attempt in attempts)
        page.line("THE BOUNDARY DID NOT HOLD" if broken else "THE STORY DID NOT END WELL", "red", "bold")
        raise SkepError("; ".join(problems))
    page.line(
        f"All {len(attempts)} attempts were stopped, the test is mended on branch {branch}, and the record holds.",
        "green",
        "bold",
    )
