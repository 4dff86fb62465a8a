"""`skep demo`: the whole story on a throwaway repository, told step by step and looked at from outside.

A scripted worker mends a failing test and tries to break out on the way, through the real `skep run`. Whether an
attempt got through is never what the worker says: it is a file that changed, a connection that was counted, a process
that is still there. One that did is a failure of the demo, and so is a worker that did not even try: nothing may hold
because everything is broken.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import click
import msgspec

from .errors import CannotRun, SkepError
from .hostgit import find_git
from .removal import remove
from .render import Page, one_line
from .state import gather, guarded

DOMAIN = "not-listed.example.com"
TIMEOUT = 120.0
MAX_ADDRESS = 100
"""Bytes of a Unix socket's path; the system takes 107."""
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "NO_COLOR", "USER", "LOGNAME", "VIRTUAL_ENV")
TEST = """import unittest

from calc import add


class Add(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""
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
    """
    facts = gather()
    program = find_git(facts.environ)
    with guarded(facts.state_dir):
        os.makedirs(facts.state_dir, mode=0o700, exist_ok=True)
        base = Path(tempfile.mkdtemp(prefix="demo-", dir=facts.state_dir))
    page = Page()
    try:
        with Stage(base, program, facts.environ) as stage:
            tell(stage, mode, page)
    finally:
        if keep:
            page.line(f"kept: {base}")
        else:
            remove(base)


class Counter:
    """A listening socket of the host that counts who gets through, and answers as HTTP does."""

    def __init__(self, server: socket.socket) -> None:
        self.server = server
        self.reached = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        server.listen()
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.reached += 1
            with connection:
                connection.settimeout(3)
                try:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nwelcome\n")
                except OSError:
                    pass

    def close(self) -> None:
        try:
            self.server.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.server.close()
        self._thread.join(5)


def tcp() -> Counter:
    server = socket.socket(socket.AF_INET)
    server.bind(("127.0.0.1", 0))
    return Counter(server)


def unix(path: Path) -> Counter:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    return Counter(server)


class Stage:
    """The throwaway folder: a home with a key in it, a repository with a failing test, and what the worker must not
    reach.
    """

    def __init__(self, base: Path, program: str, environ: Mapping[str, str]) -> None:
        self.base = base
        self.home, self.repo, self.outside = base / "home", base / "home/repo", base / "outside"
        self.marker, self.secret, self.ran = (
            self.outside / "marker",
            self.home / ".ssh/id_demo",
            self.outside / "hook-ran",
        )
        self.socket_path = self.outside / "host.sock"
        self._short: Path | None = None
        if len(os.fsencode(self.socket_path)) > MAX_ADDRESS:
            self._short = Path(tempfile.mkdtemp(prefix="skep-demo-"))
            self.socket_path = self._short / "host.sock"
        self.token = secrets.token_hex(16)
        self.tag = f"skep-demo-{secrets.token_hex(8)}"
        self.python = os.path.realpath(sys.executable)
        self._program = program
        self.env = {key: environ[key] for key in PASSED_ON if key in environ} | {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(base / "state"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def __enter__(self) -> Stage:
        for folder in (self.secret.parent, self.repo / ".demo", self.outside):
            folder.mkdir(parents=True)
        self.secret.write_text(f"KEY {self.token}\n")
        self.marker.write_text("untouched\n")
        self.open, self.closed, self.socket = tcp(), tcp(), unix(self.socket_path)
        targets = {
            "marker": str(self.marker),
            "secret": str(self.secret),
            "ran": str(self.ran),
            "domain": DOMAIN,
            "tag": self.tag,
            "socket": str(self.socket_path),
            "open_port": str(port(self.open)),
            "closed_port": str(port(self.closed)),
        }
        (self.repo / ".demo/targets.json").write_text(json.dumps(targets))
        (self.repo / ".demo/agent.py").write_text((files("skep_cli") / "demo_worker.py").read_text("utf-8"))
        (self.repo / ".gitignore").write_text("__pycache__/\n.demo/\n")
        (self.repo / "calc.py").write_text("def add(a, b):\n    return a - b\n")
        (self.repo / "test_calc.py").write_text(TEST)
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "a calculator")
        return self

    def __exit__(self, *exc: object) -> None:
        for counter in (self.open, self.closed, self.socket):
            counter.close()
        if self._short:
            remove(self._short)

    def git(self, *args: str) -> str:
        who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
        return self._run([self._program, *who, *args]).stdout

    def skep(self, *args: str) -> subprocess.CompletedProcess[str]:
        """skep itself, as a user would call it. Raises CannotRun when it says that it could not run."""
        # sys.executable and not its real path: a virtual environment is found by the name it was called by
        done = self._run([sys.executable, "-m", "skep_cli", *args], check=False)
        if done.returncode in (2, 125):
            lines = done.stderr.strip().splitlines() or ["no reason was given"]
            raise CannotRun(lines[-1].removeprefix("skep: "))
        return done

    def _run(self, words: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            words,
            cwd=self.repo,
            env=self.env,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT,
            check=False,
        )
        if check and done.returncode:
            raise SkepError(f"the demo could not be set up: {words[0]} {words[-1]}: {done.stderr.strip()[:300]}")
        return done

    def test(self) -> list[str]:
        return [self.python, "-m", "unittest", "-q"]


def port(counter: Counter) -> int:
    return cast("tuple[str, int]", counter.server.getsockname())[1]


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
        page.line(f"      it was told: {one_line(attempt.answer, 90)}", "dim")
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
