"""The worker writes nowhere but its writable roots. Each attempt is made with and without leave."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from .worker import Worker

pytestmark = pytest.mark.sandbox

ATTEMPTS = {
    "create": "open('{outside}/new', 'w').close()",
    "append": "open('{outside}/marker', 'a').write('x')",
    "truncate": "os.truncate('{outside}/marker', 0)",
    "rename": "os.rename('{outside}/marker', '{outside}/moved')",
    "remove": "os.remove('{outside}/marker')",
    "mode": "os.chmod('{outside}/marker', 0o777)",
    "times": "os.utime('{outside}/marker', (1, 1))",
    "folder": "os.mkdir('{outside}/folder')",
    "symlink": "os.symlink('x', '{outside}/link')",
    "attribute": "os.setxattr('{outside}/marker', 'user.skep', b'x')",
}


@pytest.fixture
def marker(worker: Worker) -> Path:
    marker = worker.outside / "marker"
    marker.write_text("untouched\n")
    marker.chmod(0o644)
    return marker


@pytest.mark.guarantee("write-roots")
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_outside_the_roots_nothing_changes(worker: Worker, marker: Path, attempt: str) -> None:
    body = ATTEMPTS[attempt].format(outside=worker.outside)
    before = (marker.stat(), sorted(os.listdir(worker.outside)))
    assert worker.attempt(body) == worker.unwritable
    assert (marker.stat(), sorted(os.listdir(worker.outside))) == before
    assert worker.attempt(body, "--write", str(worker.outside)) in (
        "ok",
        *(["ENOTSUP"] if attempt == "attribute" else []),
    )


@pytest.mark.guarantee("write-roots")
def test_a_root_can_be_remounted_by_nobody(worker: Worker, marker: Path) -> None:
    worker.sh(
        f"mount -o remount,bind,rw / ; mount -o remount,rw {worker.outside}; unshare -Urm mount -o remount,bind,rw /"
    )
    assert worker.attempt(ATTEMPTS["append"].format(outside=worker.outside)) == worker.unwritable
    assert marker.read_text() == "untouched\n"


@pytest.mark.guarantee("write-links")
def test_a_link_in_the_workspace_leads_no_write_out(worker: Worker, marker: Path) -> None:
    (worker.workspace / "planted").symlink_to(worker.outside)
    (worker.workspace / "inner").symlink_to("target")
    assert worker.attempt("open('planted/marker', 'a').write('x')") == worker.unwritable
    assert (
        worker.attempt(f"os.symlink({str(worker.outside)!r}, 'made'); open('made/marker', 'a').write('x')")
        == worker.unwritable
    )
    assert worker.attempt("open('inner', 'a').write('x')") == "ok"
    assert marker.read_text() == "untouched\n"
    assert (worker.workspace / "target").read_text() == "x"


@pytest.mark.guarantee("write-links")
def test_a_hard_link_leads_no_write_out(worker: Worker, marker: Path) -> None:
    link = f"os.link({str(marker)!r}, 'link'); open('link', 'a').write('x')"
    assert worker.attempt(link) in ("EXDEV", "EPERM", worker.unwritable)
    assert marker.read_text() == "untouched\n"
    (worker.workspace / "own").write_text("")
    assert worker.attempt("os.link('own', 'link'); open('link', 'a').write('x')") == "ok"


@pytest.mark.guarantee("write-protected")
@pytest.mark.parametrize(
    "path", [".git/config", ".git/hooks/post-checkout", ".vscode/tasks.json", ".envrc", "deploy/key"]
)
def test_what_runs_by_itself_is_read_only_where_it_exists(worker: Worker, path: str) -> None:
    protected = worker.workspace / path
    protected.parent.mkdir(parents=True, exist_ok=True)
    protected.write_text("as it was\n")
    (worker.workspace / ".git/HEAD").parent.mkdir(exist_ok=True)
    (worker.workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (worker.workspace / ".git/objects").mkdir()
    (worker.workspace / ".git/refs").mkdir()
    (worker.workspace / "beside").write_text("")
    flags = ("--protect", "deploy")
    assert worker.attempt(f"open({path!r}, 'a').write('x')", *flags) == "EROFS"
    assert worker.attempt(f"os.remove({path!r})", *flags) in ("EROFS", "EBUSY")
    top = path.partition("/")[0]
    assert worker.attempt(f"os.rename({top!r}, 'away')", *flags) in ("EROFS", "EBUSY")
    assert protected.read_text() == "as it was\n"
    assert worker.attempt("open('beside', 'a').write('x')", *flags) == "ok"


@pytest.mark.guarantee("write-descriptors")
def test_a_file_handed_in_as_stdin_keeps_its_mode(worker: Worker, marker: Path) -> None:
    body = "os.fchmod(0, 0o600)"
    descriptor = os.open(marker, os.O_RDONLY)
    try:
        worker.attempt(body, stdin=descriptor)
        assert stat.S_IMODE(marker.stat().st_mode) == 0o644
        assert worker.unconfined(body, stdin=descriptor) == "ok"
        assert stat.S_IMODE(marker.stat().st_mode) == 0o600
    finally:
        os.close(descriptor)


@pytest.mark.guarantee("write-descriptors")
def test_no_descriptor_but_the_first_three_reaches_the_worker(worker: Worker) -> None:
    seen = worker.sh("ls /proc/self/fd | tr '\\n' ' '")
    assert seen.split()[:3] == ["0", "1", "2"]
    assert len(seen.split()) == 4  # the fourth is the listing's own


@pytest.mark.guarantee("write-kernel")
@pytest.mark.parametrize("path", ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness", "/sys/kernel/mm/ksm/run"])
def test_kernel_settings_cannot_be_opened_for_writing(worker: Worker, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"this kernel has no {path}")
    body = f"os.close(os.open({path!r}, os.O_WRONLY))"
    assert worker.attempt(body) in ("EROFS", "EACCES", "EPERM")
    if os.geteuid() == 0:
        assert worker.unconfined(body) == "ok"
    assert worker.attempt(f"os.close(os.open({path!r}, os.O_RDONLY))") == "ok"


@pytest.mark.guarantee("write-protected", "write-links")
def test_what_a_worker_made_is_protected_later_by_every_name_it_gave_it(worker: Worker) -> None:
    made = "git init -q lib; mkdir .vscode deep; touch .vscode/t .envrc mine; ln mine yours"
    linked = "ln lib/.git/config x; ln .vscode/t deep/y; ln .envrc z"
    assert worker.run("sh", "-ec", f"{made}; {linked}").returncode == 0
    names = {"x": "lib/.git/config", "deep/y": ".vscode/t", "z": ".envrc"}
    for name, known in names.items():
        write = f"open({name!r}, 'a').write('evil')"
        before = (worker.workspace / known).read_text()
        assert worker.attempt(write) == "EROFS"
        assert worker.attempt(f"os.rename({name!r}, {name + '-moved'!r})") == "EBUSY"
        assert (worker.workspace / known).read_text() == before
        assert worker.unconfined(write) == "ok"
        assert (worker.workspace / known).read_text() == before + "evil"
    assert worker.attempt("open('yours', 'a').write('fine')") == "ok"
    assert (worker.workspace / "mine").read_text() == "fine"
