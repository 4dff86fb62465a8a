"""What a person is shown before deciding, and what a worker cannot make a terminal do."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from skep_cli.evidence import results

from .stage import run, skep

EVIL = r"printf '\033]0;title\007\033[2J\033]52;c;AAAA\007\302\233\342\200\256 done\n'"


def review(state: Path, *args: str) -> str:
    done = skep(state, "review", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(state: Path) -> dict[str, Any]:
    return json.loads(review(state, "last", "--json"))


def test_everything_one_decides_by_is_shown(state: Path, repo: Path) -> None:
    worker = "echo I did it; sed -i s/a.-.b/a+b/ calc.py; echo x > new; echo fine > $SKEP_RESULTS/summary.md; mkfifo p"
    done, _ = run(state, repo, worker, verify="sh check.sh", task="mend the test")
    told = review(state, done.id)
    for text in (
        *("mend the test", "completed", "NONE: execution mode workspace", "record    holds", "passed: sh check.sh"),
        *("| fine", "| I did it", "calc.py  +1 -1", "+    return a+b", "special: p", "summary.md  5 bytes"),
        *(f"skep approve {done.id}", str(repo)),
    ):
        assert text in told, text
    assert "\x1b" not in told


@pytest.mark.parametrize(
    ("verify", "line"),
    [
        ("no-such-tool", "unavailable: no-such-tool: no-such-tool: No such file or directory"),
        ("false", "failed: false, exit status 1"),
    ],
)
def test_why_there_is_no_verification_is_told(state: Path, repo: Path, verify: str, line: str) -> None:
    run(state, repo, "echo x > y", verify=verify)
    assert f"  {line} (without a boundary" in review(state, "last")


def test_nothing_a_worker_wrote_reaches_the_terminal_as_a_command(state: Path, repo: Path) -> None:
    name = r"$(printf 'n\033[31m\nx')"
    worker = (
        f'{EVIL}; {EVIL} > evil; touch "{name}"; {EVIL} > $SKEP_RESULTS/summary.md;'
        f'touch "$SKEP_RESULTS/{name}"; mkfifo "p{name}"'
    )
    done, _ = run(state, repo, worker, task="t\x1b]0;x\x07", verify=r"sh -c 'printf \\033'")
    told = review(state, done.id, "--full")
    allowed = {"\n", "\t"}
    assert not [char for char in told if not char.isprintable() and char not in allowed]
    assert r"\x1b]52;c;AAAA\x07" in told and r"\u{202e} done" in told and r"\x9b" in told


def test_a_long_patch_is_cut_and_says_how_to_see_it(state: Path, repo: Path) -> None:
    run(state, repo, "seq 5000 > long; head -c 100000 /dev/zero | tr '\\0' x > wide")
    told = review(state, "last")
    assert "+300" in told and "+4999" not in told and "--full" in told
    assert max(map(len, told.splitlines())) < 1000
    assert "+4999" in review(state, "last", "--full")


def test_what_runs_by_itself_is_pointed_out(state: Path, repo: Path) -> None:
    worker = (
        "mkdir -p .vscode .github/workflows pkg; echo {} > .vscode/tasks.json; echo x > .github/workflows/ci.yml;"
        "echo x > pkg/conftest.py; echo '* filter=x' > .gitattributes; ln -s /etc/passwd out; ln -s calc.py in;"
        "chmod +x check.sh; echo x > plain.txt"
    )
    run(state, repo, worker)
    told = {item["path"]: item["reason"] for item in as_json(state)["auto_exec"]}
    assert told.keys() == {
        *(
            ".vscode/tasks.json",
            ".github/workflows/ci.yml",
            "pkg/conftest.py",
            ".gitattributes",
            "out",
            "in",
            "check.sh",
        )
    }
    assert told["out"] == "a link out of the tree, to /etc/passwd" and "look where" in told["in"]
    assert told["check.sh"] == "newly executable"
    assert ".gitattributes" in review(state, "last")


def test_links_in_the_results_are_listed_and_not_followed(state: Path, repo: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "summary.md").write_text("hush")
    worker = (
        f"cd $SKEP_RESULTS; ln -s {secret}/summary.md summary.md; ln -s {secret} folder;"
        "echo fine > ok; mkfifo pipe; mkdir d; echo x > d/f"
    )
    run(state, repo, worker)
    told = review(state, "last")
    assert "hush" not in told and "ok  5 bytes" in told and "d/f  2 bytes" in told and "folder  not followed" in told


def test_a_results_folder_is_read_within_bounds(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"f{number}").touch()
    deep = tmp_path / "a"
    for _ in range(20):
        deep = deep / "d"
    deep.mkdir(parents=True)
    found = results.listing(str(tmp_path))
    assert found.cut and len(found.items) <= results.MAX_ENTRIES
    (tmp_path / "summary.md").write_bytes(b"x" * 100_000)
    assert len(results.summary(str(tmp_path)) or "") == results.MAX_TEXT
    os.mkfifo(tmp_path / "pipe")
    assert results.text(str(tmp_path), "pipe") is None and results.text(str(tmp_path), "absent") is None
    assert results.listing(str(tmp_path / "absent")).items == ()


def test_what_a_worker_does_to_its_results_folder_stops_no_review(tmp_path: Path) -> None:
    (tmp_path / "summary.md").mkdir()
    (tmp_path / "summary.txt").write_text("fine")
    assert results.text(str(tmp_path), "summary.md") is None
    assert results.summary(str(tmp_path)) == "fine"
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "inside").touch()
    folder.chmod(0o444)
    root = os.geteuid() == 0  # whom no mode stops
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        found = results.listing(str(folder))
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)
    assert [(item.path, item.kind, item.detail) for item in found.items] == [("inside", "other", "in a closed folder")]


def test_a_record_that_does_not_hold_is_shown_so(state: Path, repo: Path) -> None:
    _, folder = run(state, repo, "echo x > f")
    folder.patch.write_text(folder.patch.read_text().replace("+x", "+y"))
    assert "patch.diff: was changed" in review(state, "last")
    assert as_json(state)["record"] == "patch.diff: was changed after it was recorded"


def test_a_run_whose_repository_is_gone_can_still_be_looked_at(state: Path, repo: Path, tmp_path: Path) -> None:
    run(state, repo, "mkdir .vscode; echo x > .vscode/x")
    repo.rename(tmp_path / "gone")
    told = review(state, "last")
    assert "+x" in told and "an editor" in told


@pytest.mark.parametrize(
    ("verify", "how"), [("true", "skep approve"), ("false", "skep approve --force"), (None, "skep approve --force")]
)
def test_the_command_that_is_named_approves_the_run(state: Path, repo: Path, verify: str | None, how: str) -> None:
    done, _ = run(state, repo, "echo x > f", verify=verify)
    assert f"\n{how} {done.id}   or   skep deny {done.id}" in review(state, "last")
    assert skep(state, *done.approving.split()[1:]).returncode == 0 and done.approving == f"{how} {done.id}"


def test_a_decided_run_says_so_and_no_longer_asks(state: Path, repo: Path) -> None:
    done, _ = run(state, repo, "echo x > f")
    assert skep(state, "approve", done.id, "--force").returncode == 0
    told = review(state, done.id)
    assert "approved at" in told and "by force" in told and f"skep deny {done.id}" not in told


def test_the_json_has_what_the_run_printed_and_more(state: Path, repo: Path) -> None:
    done, folder = run(state, repo, "echo x > f; echo said")
    told = as_json(state)
    assert {key: told[key] for key in done.document(folder)} == done.document(folder)
    assert told["diffstat"] == [{"added": "1", "removed": "0", "path": "f"}] and told["said"] == "said"
