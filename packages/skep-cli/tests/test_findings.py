"""What a worker leaves is looked at without following it. No sandbox is needed: its leavings are made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from skep_cli.findings import look_after
from skep_policy.boundary import Access, Boundary, Limits, PathRule, Watched
from skep_policy.rules import Rules


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / ".git/info").mkdir(parents=True)
    return root


def boundary(
    root: Path, *watched: Watched, links: dict[str, str] | None = None, mapped: dict[str, str] | None = None
) -> Boundary:
    return Boundary(
        workspace=str(root),
        cwd=str(root),
        home=str(root.parent),
        uid=os.getuid(),
        gid=os.getgid(),
        roots=(PathRule(str(root), Access.WRITE, "dir"),),
        protects=(),
        hides=(),
        reads=(),
        watched=watched,
        mapped=mapped or {},
        read="host",
        devices=(),
        sockets=(),
        rules=Rules.build(),
        env={},
        limits=Limits(),
        links=links or {},
    )


def test_what_did_not_appear_is_no_finding(root: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert look_after(boundary(root, Watched(f"{root}/.envrc", "direnv runs it")), str(kept)) == []
    assert look_after(boundary(root, Watched(f"{root}/no/such/folder", "x", True)), str(kept)) == []
    assert not kept.exists()


def test_what_runs_by_itself_is_reported_and_stays(root: Path, tmp_path: Path) -> None:
    (root / ".envrc").write_text("x")
    [finding] = look_after(boundary(root, Watched(f"{root}/.envrc", "direnv runs it")), str(tmp_path / "kept"))
    assert (finding.kind, finding.path) == ("appeared", f"{root}/.envrc")
    assert (root / ".envrc").exists()


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link", "link to a folder of the user's"])
def test_what_git_would_obey_is_moved_away_whole_and_unfollowed(root: Path, tmp_path: Path, kind: str) -> None:
    mine, hooks = tmp_path / "mine", root / ".git/hooks"
    mine.mkdir()
    (mine / "pre-commit").write_text("mine")
    if kind == "file":
        hooks.write_text("x")
    elif kind == "folder":
        hooks.mkdir()
        (hooks / "pre-commit").write_text("planted")
    else:
        hooks.symlink_to(mine if "user" in kind else "nowhere")
    [finding] = look_after(boundary(root, Watched(str(hooks), "git runs hooks", True)), str(tmp_path / "kept"))
    assert finding.kind == "quarantined" and str(tmp_path / "kept") in finding.detail
    assert not os.path.lexists(hooks)
    assert (mine / "pre-commit").read_text() == "mine"


def test_a_folder_that_became_a_link_does_not_lead_us_to_files_of_the_users(root: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "attributes").write_text("mine")
    (root / ".git/info").rmdir()
    (root / ".git/info").symlink_to(mine)
    watched = Watched(f"{root}/.git/info/attributes", "git runs the filters it names", True)
    [finding] = look_after(boundary(root, watched), str(tmp_path / "kept"))
    assert (finding.kind, finding.path) == ("quarantined", f"{root}/.git/info")
    assert (mine / "attributes").read_text() == "mine"
    assert not os.path.lexists(root / ".git/info")


def test_a_replaced_link_is_put_back(root: Path, tmp_path: Path) -> None:
    (root / "real.toml").write_text("deny")
    link = root / "skep.toml"
    link.write_text("allow everything")
    findings = look_after(boundary(root, links={str(link): "real.toml"}), str(tmp_path / "kept"))
    assert [finding.kind for finding in findings] == ["restored"]
    assert os.readlink(link) == "real.toml" and link.read_text() == "deny"
    assert look_after(boundary(root, links={str(link): "real.toml"}), str(tmp_path / "kept")) == []


def test_in_a_run_the_copy_is_looked_at_and_the_workers_path_is_told(root: Path, tmp_path: Path) -> None:
    seen = Path("/somewhere/else")
    (root / ".envrc").write_text("x")
    there = boundary(seen, Watched(f"{seen}/.envrc", "direnv runs it"), mapped={str(seen): str(root)})
    [finding] = look_after(there, str(tmp_path / "kept"))
    assert finding.path == f"{seen}/.envrc"
