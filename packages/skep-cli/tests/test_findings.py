"""What a worker leaves is looked at without following it. No sandbox is needed: its leavings are made by hand."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
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


EVIL = "[core]\n\tfsmonitor = touch x\n"


def plant(folder: Path) -> None:
    (folder / ".git/refs").mkdir(parents=True)
    (folder / ".git/objects").mkdir()
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git/config").write_text(EVIL)


@pytest.mark.skipif(os.geteuid() == 0, reason="root is kept out of nothing")
@pytest.mark.parametrize(
    "closed",
    [
        {"lib/.git": 0o555},
        {"lib": 0o555},
        {"lib": 0o311},
        {"lib": 0},
        {"lib": 0, "": 0o311},
        {"lib/.git": 0, "lib": 0, "": 0},
    ],
)
def test_modes_keep_nothing_from_being_moved_away(root: Path, tmp_path: Path, closed: dict[str, int]) -> None:
    plant(root / "lib")
    watched = Watched(f"{root}/.git/info/attributes", "x", True)
    (root / ".git/info/attributes").write_text("* filter=x")
    (root / ".git/info").chmod(0)
    for path, mode in closed.items():
        (root / path).chmod(mode)
    findings = look_after(boundary(root, watched), str(tmp_path / "kept"))
    quarantined = {finding.path for finding in findings if finding.kind == "quarantined"}
    assert quarantined >= {f"{root}/.git/info/attributes", f"{root}/lib/.git"}
    assert not os.path.lexists(root / "lib/.git") and not os.path.lexists(root / ".git/info/attributes")


def test_what_cannot_be_moved_is_told_and_stops_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (root / name).write_text("x")
    rename = os.rename

    def refused(source: str, *args: str, **how: int | None) -> None:
        if source == "a":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        rename(source, *args, **how)

    monkeypatch.setattr(os, "rename", refused)
    findings = look_after(
        boundary(root, Watched(f"{root}/a", "x", True), Watched(f"{root}/b", "x", True)), str(tmp_path / "kept")
    )
    assert [(finding.kind, finding.path) for finding in findings] == [
        ("unreadable", f"{root}/a"),
        ("quarantined", f"{root}/b"),
    ]


def test_a_quarantine_that_cannot_be_made_leaves_it_beside_its_place(root: Path) -> None:
    (root / "state").write_text("x")
    [finding] = look_after(boundary(root, Watched(f"{root}/state", "x", True)), f"{root}/state/quarantine")
    assert finding.kind == "quarantined" and not os.path.lexists(root / "state")
    assert [path.name.partition(".quarantined-")[0] for path in root.iterdir() if "quarantined" in path.name] == [
        "state"
    ]


def test_names_that_are_no_text_can_be_recorded(root: Path, tmp_path: Path) -> None:
    plant(root / os.fsdecode(b"\xff"))
    [finding] = look_after(boundary(root), str(tmp_path / "kept"))
    assert msgspec.json.decode(msgspec.json.encode(finding), type=type(finding)).path == f"{root}/\\xff/.git"
