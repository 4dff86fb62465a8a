"""`--caches warm`: what the host's tools have is there, and nothing a run does to it reaches anybody else."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from .stage import git
from .yard import Yard, needs, ok

pytestmark = pytest.mark.sandbox

SEEN = "/tmp/.cache/pip"
POISON = f"set -e; cat {SEEN}/d/seed; echo poison > {SEEN}/d/seed; echo new > {SEEN}/new; cat {SEEN}/d/seed; echo x > f"
READ_ONLY = f"mkdir -p {SEEN}/ro/x; chmod -R 555 {SEEN}/ro"
"""As go leaves its modules."""
CLEAN = f"cat {SEEN}/d/seed; test ! -e {SEEN}/new"


@pytest.fixture
def cache(yard: Yard) -> Path:
    folder = yard.home / ".cache/pip"
    yard.write({".cache/pip/d/seed": "warm\n"}, below=yard.home)
    git(yard.project, "init", "-q")
    git(yard.project, "commit", "-qm", "base", "--allow-empty")
    return folder


def run(yard: Yard, worker: str, *flags: str, verify: str = CLEAN) -> dict[str, Any]:
    words = ("--toolchain", "python", "--worker", f"sh -c '{worker}'", "--verify", f"sh -c '{verify}'", "--json")
    done = yard.outside(sys.executable, "-m", "skep_cli", "run", ".", "t", *words, *flags)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "log": (Path(told["audit"]) / "worker.log").read_text()}


@pytest.mark.guarantee("write-roots")
def test_a_warm_cache_is_the_hosts_and_what_is_written_to_it_is_gone_with_the_run(yard: Yard, cache: Path) -> None:
    for _ in range(2):  # the second finds nothing of the first
        told = run(yard, f"{POISON}; {READ_ONLY}", "--caches", "warm")
        assert told["log"] == "warm\npoison\n" and told["layers"]["caches"] is True, told
        assert told["verification"]["outcome"] == "passed", "it finds the host's, not the worker's"
        assert told["files_changed"] == ["f"] and told["findings"] == []
    assert (cache / "d/seed").read_text() == "warm\n" and not (cache / "new").exists()
    assert not list((yard.state / "skep/runs").glob("*/workspace")), "the layers are gone"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), None),
        (("--caches", "warm", "--workspace", "copy"), "only an overlay"),
        (("--caches", "warm", "--hide", "~/.cache/pip/d"), "not all of it may be read"),
        (("--caches", "warm", "--hide", "~/.cache"), "not all of it may be read"),
    ],
    ids=["unasked", "copy", "hidden below", "hidden above"],
)
def test_where_it_cannot_be_kept_apart_or_may_not_be_read_it_is_cold_and_why_is_on_record(
    yard: Yard, cache: Path, flags: tuple[str, ...], why: str | None
) -> None:
    told = run(yard, f"test ! -e {SEEN}/d && echo cold", *flags, verify=f"test ! -e {SEEN}/d")
    assert told["log"] == "cold\n" and told["verification"]["outcome"] == "passed", told
    assert why in told["layers"]["caches"] if why else "caches" not in told["layers"]
    assert (cache / "d/seed").read_text() == "warm\n"


def test_a_daemon_that_listens_in_a_cache_is_not_reached_through_it(yard: Yard, cache: Path) -> None:
    ask = "import socket; socket.socket(socket.AF_UNIX).connect"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path := str(cache / "s"))
        server.listen()
        yard.write({"ask.py": f'{ask}("{SEEN}/s")\n', "control.py": f'{ask}("{path}")\n'})
        ok(yard.outside(sys.executable, "control.py"))
        told = run(yard, f"ls {SEEN}; python3 ask.py || echo refused", "--caches", "warm", verify="true")
    assert told["log"].splitlines()[-1] == "refused", told["log"]


@needs("go")
def test_go_builds_nothing_that_the_host_has_built(yard: Yard) -> None:
    yard.write({"go.mod": "module small\n\ngo 1.18\n", "small_test.go": "package small\n"})
    git(yard.project, "init", "-q")
    git(yard.project, "add", "-A")
    git(yard.project, "commit", "-qm", "base")
    ok(yard.outside("go", "vet", "./..."))
    words = ("--toolchain", "go", "--worker", "sh -c 'ls /tmp/.cache/go-build | wc -l; go vet ./...'", "--json")
    counts: list[int] = []
    for flags in ((), ("--caches", "warm")):
        done = yard.outside(sys.executable, "-m", "skep_cli", "run", ".", "t", *words, *flags)
        audit = Path(json.loads(ok(done).splitlines()[-1])["audit"])
        counts.append(int((audit / "worker.log").read_text().splitlines()[-1]))
    assert counts[0] == 0 < counts[1]
