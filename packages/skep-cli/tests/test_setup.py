"""The setup of a run: the operator's commands in the workspace before the worker, with a network of their own."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .stage import document, git, make_repo, skep
from .test_interrupts import KINDS, Started
from .yard import PACKAGE, Registry

BOTH = ["overlay", "copy"]


def run(state: Path, repo: Path, worker: str, *flags: str, kind: str = "overlay") -> dict[str, Any]:
    how = ("--execution-mode", "workspace") if kind == "workspace" else ("--workspace", kind)
    quoted = worker.replace("'", "'\\''")
    done = skep(state, "run", str(repo), "t", "--worker", f"sh -c '{quoted}'", "--json", *how, *flags)
    if "no overlay" in done.stderr and not os.environ.get("SKEP_SANDBOX_MUST_WORK"):
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    return {**document(done), "err": done.stderr, "status": done.returncode}


INSTALL = "sh -c 'mkdir -p node_modules/tool && echo good > node_modules/tool/t && rm -f .venv/old && echo l > a.log'"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    repo = make_repo(tmp_path / "repo", {"f": "f\n", ".gitignore": "node_modules/\n.venv/\n*.log\n", "gone": "g\n"})
    for name in (".venv/old", ".venv/kept", "node_modules/stale/s"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("user's\n")
    return repo


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_setup_installs_is_there_for_worker_and_verification_and_is_no_part_of_the_patch(
    state: Path, tree: Path, kind: str
) -> None:
    worker = "grep -q good node_modules/tool/t && test ! -e .venv/old && echo bad > node_modules/tool/t && echo x > f"
    check = (
        "grep -q good node_modules/tool/t && test ! -e .venv/old && test -f .venv/kept && test -f node_modules/stale/s"
        " && test -f a.log && grep -q x f"
    )
    done = run(state, tree, worker, "--setup", INSTALL, "--verify", f"sh -c '{check}'", kind=kind)
    assert (done["state"], done["verification"]["outcome"]) == ("completed", "passed"), done["err"]
    assert done["files_changed"] == ["f"] and done["setup"] == {"outcome": "passed", "command": INSTALL, "exit_code": 0}
    assert not (tree / "node_modules/tool").exists() and (tree / ".venv/old").exists()
    assert not list((state / "skep/runs").glob("*/setup"))
    assert skep(state, "audit", "verify", done["id"]).returncode == 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_folder_a_setup_made_anew_has_nothing_of_the_users(state: Path, tree: Path, kind: str) -> None:
    setup = "sh -c 'rm -r node_modules && mkdir node_modules && echo n > node_modules/n && echo more > gen && rm gone'"
    look = "test -f node_modules/n && test ! -e node_modules/stale && test ! -e gone"
    check = f"sh -c '{look} && test ! -e gen && grep -q x f'"
    done = run(
        state, tree, f"{look} && test -f gen && rm gen && echo x > f", "--setup", setup, "--verify", check, kind=kind
    )
    assert done["verification"]["outcome"] == "passed", done["err"]
    assert done["files_changed"] == ["f", "gone"], "what is not ignored is part of the patch, as it is in the end"


@pytest.mark.parametrize("kind", KINDS)
def test_a_setup_that_fails_is_a_failed_run_with_its_status_and_its_log(state: Path, tree: Path, kind: str) -> None:
    flags = (
        "--setup",
        "echo one",
        "--setup",
        "sh -c 'echo broken; exit 3'",
        "--setup",
        "touch never",
        "--verify",
        "true",
    )
    done = run(state, tree, "echo x > f", *flags, kind=kind)
    assert (done["status"], done["state"], done["exit_code"]) == (1, "failed", 3), done["err"]
    assert done["setup"] == {"outcome": "failed", "command": "sh -c 'echo broken; exit 3'", "exit_code": 3}
    assert done["patch"] is None and done["verification"]["outcome"] == "none"
    assert Path(done["audit"], "setup.log").read_text() == "one\nbroken\n"
    assert not Path(done["audit"], "worker.log").exists() or not Path(done["audit"], "worker.log").read_text()
    assert done["err"].count("the setup failed") == 1 and "the setup failed" in skep(state, "review", done["id"]).stdout
    assert skep(state, "audit", "verify", done["id"]).returncode == 0
    Path(done["audit"], "setup.log").write_text("fine\n")
    assert skep(state, "audit", "verify", done["id"]).returncode != 0


class Origin:
    """A server on loopback, and who came."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()


@pytest.fixture
def origin() -> Iterator[Origin]:
    made = Origin()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


@pytest.mark.parametrize("kind", BOTH)
def test_what_only_the_setup_may_reach_neither_worker_nor_verification_do(
    state: Path, tree: Path, tmp_path: Path, origin: Origin, kind: str
) -> None:
    policy = tmp_path / "p.toml"
    fetch = f"curl -sS -m 60 http://localhost:{origin.port}"
    policy.write_text(f'worker.setup = ["{fetch}/setup"]\nsetup.network = ["localhost:{origin.port}"]\n')
    flags = ("--policy", str(policy), "--verify", f"sh -c '! {fetch}/verify'")
    done = run(state, tree, f"! {fetch}/worker", *flags, kind=kind)
    assert (done["state"], done["verification"]["outcome"]) == ("completed", "passed"), done["err"]
    assert origin.asked == ["/setup"]
    assert not done["egress"]["allowed"], "what the setup did is not the worker's"
    assert '"kind":"setup-egress"' in Path(done["audit"], "events.jsonl").read_text().replace(" ", "")


def test_a_setup_that_may_not_reach_is_told_the_flag(state: Path, tree: Path) -> None:
    done = run(state, tree, "true", "--setup", "curl -fsS -m 60 http://not-listed.example/")
    assert done["state"] == "failed" and not done["egress"]["denied"]
    assert "setup: denied not-listed.example" in done["err"], done["err"]


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm here")
def test_a_toolchain_of_the_setup_installs_and_its_registry_is_not_the_workers(state: Path, tmp_path: Path) -> None:
    registry = Registry()
    try:
        home = state / "home"
        home.mkdir()
        (home / ".npmrc").write_text(f"registry=http://127.0.0.1:{registry.port}/npm/\n")
        package = f'{{"name": "x", "version": "1.0.0", "dependencies": {{"{PACKAGE}": "1.0.0"}}}}\n'
        repo = make_repo(tmp_path / "repo", {"package.json": package, ".gitignore": "node_modules/\n*.json\n"})
        use = f'node -p "require(\\"{PACKAGE}\\")" | grep -qx 42'
        worker = f"{use} && ! npm view {PACKAGE} version && echo x > f"
        flags = ("--setup", "npm install --no-audit", "--setup-toolchain", "node", "--verify", f"sh -c '{use}'")
        done = run(state, repo, worker, *flags)
        asked = len(registry.asked)
    finally:
        registry.close()
    assert (done["state"], done["verification"]["outcome"]) == ("completed", "passed"), done["err"]
    assert done["files_changed"] == ["f"] and asked > 0


def test_a_projects_setup_counts_once_it_is_trusted(state: Path, tree: Path) -> None:
    (tree / "skep.toml").write_text('[worker]\nsetup = ["touch made.log"]\n[setup]\nnetwork = ["example.com"]\n')
    git(tree, "add", "-A")
    done = run(state, tree, "test ! -e made.log")
    assert done["state"] == "completed" and "setup" not in done and "worker.setup = touch made.log" in done["err"]
    shown = skep(state, "policy", "show", cwd=tree).stdout
    assert "worker.setup = touch made.log" in shown and "asked for and not granted" in shown
    assert skep(state, "trust", str(tree), "--yes").returncode == 0
    done = run(state, tree, "test -e made.log")
    assert done["state"] == "completed" and done["setup"]["outcome"] == "passed", done["err"]
    assert f"setup.network = example.com  ({tree}/skep.toml)" in skep(state, "policy", "show", cwd=tree).stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('worker.setup = ["sh -c \'x"]', "no closing quotation"),
        ('worker.setup = [""]', "worker.setup[0]"),
        (
            '[worker]\nsetup = ["npm ci",\n  "cd sub && make"]',
            "p.toml:3: worker.setup[1]: 'cd sub && make': no shell reads",
        ),
        ('worker.setup = [["npm", "ci"]]', "worker.setup"),
        ('setup.network = ["http://x"]', "setup.network[0]"),
        ('setup.toolchain = ["node"]', "toolchain"),
    ],
)
def test_a_setup_that_cannot_be_is_found_by_check(state: Path, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.toml").write_text(text + "\n")
    done = skep(state, "policy", "check", str(tmp_path / "p.toml"))
    assert done.returncode == 2 and says in done.stderr, done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_a_setup_is_a_failed_run_and_no_worker(state: Path, tree: Path, kind: str, number: int) -> None:
    started = Started(state, tree, "touch $SKEP_RESULTS/ran", kind, "--setup", "sh -c 'echo up; exec sleep 60'")
    started.until("up\n")
    started.send(number)
    code, told = started.end()
    assert b"you asked it to stop" in started.said
    assert told is not None and (code, told["state"], told["setup"]["outcome"]) == (1, "failed", "failed")
    assert not list((state / "skep/runs").glob("*/results/ran"))
