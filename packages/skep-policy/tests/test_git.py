"""What of a repository is protected, opened and watched, on repositories git itself made."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skep_policy import Access, Boundary, PolicyError, appeared
from skep_policy.gitconfig import parse

from .world import Link, World

WRITE, READ = Access.WRITE, Access.READ
GIT = "[filesystem]\ngit = true\n"


def git(folder: Path, *args: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "protocol.file.allow=always"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *who, *args], cwd=folder, env=env, check=True, capture_output=True)


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", ".")
    (folder / "f").write_text("x")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def access(world: World, boundary: Boundary, *names: str) -> list[Access]:
    return [world.access(boundary, name) for name in names]


def watched(world: World, boundary: Boundary, folder: str) -> set[str]:
    return {os.path.relpath(path, folder) for path in world.watched(boundary) if path.startswith(folder)}


def test_a_repository_is_readable_and_no_more_by_default(world: World) -> None:
    repository(world.repo)
    boundary = world.resolve()
    git_dir = "home/repo/.git"
    assert (
        access(world, boundary, git_dir, f"{git_dir}/config", f"{git_dir}/hooks/x", f"{git_dir}/objects/ab")
        == [READ] * 4
    )
    assert world.access(boundary, "home/repo/f") == WRITE


def test_with_git_a_commit_can_be_written_and_what_git_runs_cannot(world: World) -> None:
    repository(world.repo)
    boundary = world.resolve(GIT)
    git_dir = "home/repo/.git"
    writable = (
        "index",
        "index.lock",
        "HEAD",
        "objects/ab/cd",
        "refs/heads/main",
        "logs/HEAD",
        "COMMIT_EDITMSG",
        "packed-refs",
    )
    assert access(world, boundary, *(f"{git_dir}/{name}" for name in writable)) == [WRITE] * len(writable)
    assert (
        access(world, boundary, *(f"{git_dir}/{name}" for name in ("config", "hooks", "hooks/pre-commit")))
        == [READ] * 3
    )
    assert watched(world, boundary, git_dir) >= {
        *("config.worktree", "info/attributes", "commondir", "objects/info/alternates", "rebase-merge", "sequencer")
    }
    assert all(item.quarantine for item in boundary.watched if "/.git/" in item.path)


def test_a_folder_without_hooks_is_watched_for_them(world: World) -> None:
    repository(world.repo)
    subprocess.run(["rm", "-r", world.repo / ".git/hooks"], check=True)
    assert "hooks" in watched(world, world.resolve(GIT), "home/repo/.git")
    assert "hooks" not in watched(world, world.resolve(), "home/repo/.git")


def test_a_folder_that_is_no_repository_is_watched_for_one(world: World) -> None:
    (quiet,) = [item for item in world.resolve().watched if item.path.endswith("/.git")]
    (allowed,) = [item for item in world.resolve(GIT).watched if item.path.endswith("/.git")]
    assert quiet.quarantine and not allowed.quarantine


@pytest.mark.parametrize("policy", ["", GIT])
def test_hooks_that_are_a_link_are_protected_where_they_lead(world: World, policy: str) -> None:
    repository(world.repo)
    subprocess.run(["rm", "-r", world.repo / ".git/hooks"], check=True)
    world.add({"home/repo/hk/post-commit": "x", "home/repo/.git/hooks": Link("../hk")})
    boundary = world.resolve(policy)
    assert world.access(boundary, "home/repo/hk/post-commit") == READ
    assert f"{world.repo}/.git/hooks" in boundary.links or world.access(boundary, "home/repo/.git") == READ


@pytest.mark.parametrize("policy", ["", GIT])
def test_a_hook_that_is_a_link_into_the_work_tree_is_protected_there(world: World, policy: str) -> None:
    repository(world.repo)
    world.add({"home/repo/scripts/check": "x", "home/repo/.git/hooks/pre-commit": Link("../../scripts/check")})
    boundary = world.resolve(policy)
    assert world.access(boundary, "home/repo/scripts/check") == READ
    assert world.access(boundary, "home/repo/scripts/other") == WRITE


@pytest.mark.parametrize("policy", ["", GIT])
def test_what_the_configuration_runs_or_includes_is_protected_in_the_work_tree(world: World, policy: str) -> None:
    repository(world.repo)
    world.add({
        "home/repo/hooks/pre-push": "x",
        "home/repo/team.gitconfig": "[filter \"x\"]\n\tclean = sh 'tools/clean it.sh' tools/clean.sh %f\n",
        "home/repo/tools/clean.sh": "x",
        "home/repo/tools/watch": "x",
        "home/repo/tools/alias": "x",
        "home/repo/tools/free": "x",
        "home/repo/attributes": "x",
    })  # fmt: skip
    settings = {
        "core.hooksPath": "hooks",
        "include.path": "../team.gitconfig",
        "core.fsmonitor": "tools/watch --all",
        "core.attributesFile": f"{world.repo}/attributes",
        "alias.go": "!./tools/alias",
    }
    for key, value in settings.items():
        git(world.repo, "config", key, value)
    boundary = world.resolve(policy)
    protected = (
        "hooks/pre-push",
        "hooks/new",
        "team.gitconfig",
        "tools/clean.sh",
        "tools/watch",
        "attributes",
        "tools/alias",
    )
    assert access(world, boundary, *(f"home/repo/{name}" for name in protected)) == [READ] * len(protected)
    assert world.access(boundary, "home/repo/tools/free") == WRITE


def test_an_absent_file_the_configuration_names_is_watched(world: World) -> None:
    repository(world.repo)
    git(world.repo, "config", "include.path", "../later")
    git(world.repo, "config", "core.hooksPath", "later-hooks")
    assert {"home/repo/later", "home/repo/later-hooks"} <= world.watched(world.resolve())


def test_the_users_own_configuration_counts_too(world: World) -> None:
    repository(world.repo)
    world.add(
        {"home/.gitconfig": "[core]\n\thooksPath = .hooks # relative to each work tree\n", "home/repo/.hooks/x": "x"}
    )
    assert world.access(world.resolve(), "home/repo/.hooks/x") == READ


def test_configuration_that_is_odd_breaks_nothing(world: World) -> None:
    repository(world.repo)
    with (world.repo / ".git/config").open("a") as file:
        file.write(
            '[include]\n path = config\n[include]\n path = ../.git/config\n[alias]\n x = "!'
            + "y" * 5000
            + '"\n[core\n=\n'
        )
    assert world.access(world.resolve(GIT), "home/repo/.git/config") == READ


# Linked worktrees, submodules, the folder above


def test_a_linked_worktree_can_commit_without_the_whole_main_repository(world: World) -> None:
    main = repository(world.home / "main")
    os.rmdir(world.repo)
    git(main, "worktree", "add", "-q", "-b", "topic", str(world.repo))
    boundary = world.resolve(GIT)
    own, common = "home/main/.git/worktrees/repo", "home/main/.git"
    writable = (
        f"{own}/index.lock",
        f"{own}/HEAD",
        f"{own}/logs/HEAD",
        f"{common}/objects/ab/cd",
        f"{common}/refs/heads/topic",
    )
    assert access(world, boundary, *writable) == [WRITE] * len(writable)
    closed = (
        f"{common}/config",
        f"{common}/hooks/x",
        f"{common}/HEAD",
        f"{common}/index",
        f"{own}/commondir",
        f"{own}/gitdir",
    )
    assert access(world, boundary, *closed, "home/main/f", "home/repo/.git") == [READ] * (len(closed) + 2)
    assert "config.worktree" in watched(world, boundary, own)
    default = world.resolve()
    assert access(world, default, f"{own}/HEAD", f"{common}/objects/ab", "home/repo/.git") == [READ] * 3


def test_a_linked_worktree_beside_its_main_repository_in_one_root_is_guarded(world: World) -> None:
    main = repository(world.repo / "main")
    git(main, "worktree", "add", "-q", "-b", "topic", str(world.repo / "tree"))
    boundary = world.resolve(GIT)
    common = "home/repo/main/.git"
    assert (
        access(world, boundary, f"{common}/config", f"{common}/hooks/x", f"{common}/worktrees/tree/gitdir")
        == [READ] * 3
    )
    assert (
        access(world, boundary, f"{common}/index", f"{common}/worktrees/tree/index", "home/repo/tree/f") == [WRITE] * 3
    )
    assert access(world, world.resolve(), f"{common}/index", "home/repo/tree/.git") == [READ] * 2


def test_a_submodules_configuration_and_hooks_are_guarded(world: World) -> None:
    library = repository(world.root / "library")
    repository(world.repo)
    git(world.repo, "submodule", "add", "-q", str(library), "libs/deep")
    git(world.repo, "commit", "-qm", "two")
    boundary = world.resolve(GIT)
    module = "home/repo/.git/modules/libs/deep"
    assert access(world, boundary, f"{module}/config", f"{module}/hooks/x", "home/repo/libs/deep/.git") == [READ] * 3
    assert access(world, boundary, f"{module}/index", f"{module}/objects/ab", "home/repo/libs/deep/f") == [WRITE] * 3
    assert world.access(world.resolve(), f"{module}/index") == READ


def test_a_submodule_as_the_workspace_is_opened_since_it_points_back(world: World) -> None:
    library = repository(world.root / "library")
    repository(world.repo)
    git(world.repo, "submodule", "add", "-q", str(library), "lib")
    boundary = world.resolve(GIT, workspace=f"{world.repo}/lib")
    module = "home/repo/.git/modules/lib"
    assert access(world, boundary, f"{module}/index", f"{module}/objects/ab") == [WRITE] * 2
    assert (
        access(world, boundary, f"{module}/config", "home/repo/.git/config", "home/repo/.git/index", "home/repo/f")
        == [READ] * 4
    )


def test_a_part_of_a_repository_as_the_workspace_can_commit(world: World) -> None:
    repository(world.repo)
    (world.repo / "part").mkdir()
    boundary = world.resolve(GIT, workspace=f"{world.repo}/part")
    assert access(world, boundary, "home/repo/.git/index.lock", "home/repo/part/f") == [WRITE] * 2
    assert access(world, boundary, "home/repo/.git/config", "home/repo/.git/hooks/x", "home/repo/f") == [READ] * 3
    assert world.access(world.resolve(workspace=f"{world.repo}/part"), "home/repo/.git/index.lock") == READ


def pointing(world: World, **files: str | Link) -> Any:
    """The workspace's `.git` leads to a repository it has nothing to do with, as an earlier worker may have left it."""
    repository(world.home / "private")
    world.add({f"home/repo/{name}": content for name, content in files.items()})
    return world


CLAIMS = {
    "a file": {".git": "gitdir: ../private/.git\n"},
    "a link": {".git": Link("../private/.git")},
    "a link to a file": {".git": Link("claim"), "claim": "gitdir: ../private/.git\n"},
    "a commondir": {".git/HEAD": "ref: x", ".git/commondir": "../../private/.git\n", ".git/config": ""},
    "a git folder with a commondir": {
        ".git": "gitdir: own\n",
        "own/commondir": "../../private/.git\n",
        "own/config": "[core]\n\tworktree = ..\n",
        "own/gitdir": "../.git\n",
    },
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_repository_that_does_not_point_back_is_never_opened(world: World, claim: str) -> None:
    pointing(world, **CLAIMS[claim])
    with pytest.raises(PolicyError, match="does not point back") as error:
        world.resolve(GIT)
    assert f"--write {world.home}/private/.git" in str(error.value)
    assert world.access(world.resolve(), "home/private/.git/index") == READ
    boundary = world.resolve(GIT + f"write = ['{world.home}/private/.git']")
    assert access(world, boundary, "home/private/.git/index", "home/private/.git/config") == [WRITE, READ]


@pytest.mark.parametrize("policy", ["", GIT])
@pytest.mark.parametrize(
    "content", ["", "nonsense", "gitdir:", "gitdir: /absent", "gitdir: .", "x" * 5000, "gitdir: a\0b"]
)
def test_a_git_file_that_is_odd_is_protected(world: World, content: str, policy: str) -> None:
    world.add({"home/repo/.git": content})
    try:
        boundary = world.resolve(policy)
    except PolicyError as error:
        assert "does not point back" in str(error) or "read-only" in str(error)  # noqa: PT017
    else:
        assert world.access(boundary, "home/repo/.git") == READ


def test_nested_repositories_are_guarded_at_any_depth(world: World) -> None:
    repository(world.repo)
    repository(world.repo / "a/b/c")
    git_dir = "home/repo/a/b/c/.git"
    assert world.access(world.resolve(), f"{git_dir}/index") == READ
    boundary = world.resolve(GIT)
    assert access(world, boundary, f"{git_dir}/index", f"{git_dir}/config", f"{git_dir}/hooks/x") == [WRITE, READ, READ]
    assert "commondir" in watched(world, boundary, git_dir)


def test_a_nested_git_file_opens_nothing_outside(world: World) -> None:
    repository(world.repo)
    pointing(world, **{"sub/.git": "gitdir: ../../private/.git\n"})
    boundary = world.resolve(GIT)
    assert world.access(boundary, "home/private/.git/index") == READ
    assert world.access(boundary, "home/repo/sub/.git") == READ


def test_an_extra_root_that_is_a_repository_is_guarded(world: World) -> None:
    repository(world.home / "lib")
    policy = "write = ['~/lib']"
    assert world.access(world.resolve("[filesystem]\n" + policy), "home/lib/.git/config") == READ
    boundary = world.resolve(GIT + policy)
    assert access(world, boundary, "home/lib/.git/index", "home/lib/.git/config") == [WRITE, READ]


def test_git_cannot_be_granted_by_path(world: World) -> None:
    repository(world.repo)
    with pytest.raises(PolicyError, match="--git"):
        world.resolve("[filesystem]\ngrant = ['.git/hooks']")


# What appears during a run


def planted(world: World, content: dict[str, str | Link | None]) -> dict[str, bool]:
    """Path below the repository -> to be quarantined, of what appeared after a worker made some files."""
    boundary = world.resolve()
    world.add({f"home/repo/{name}": text for name, text in content.items()})
    return {os.path.relpath(found.path, world.repo): found.quarantine for found in appeared(boundary, since=0)}


def test_a_new_repository_as_git_makes_it_is_reported(world: World) -> None:
    library = repository(world.root / "library")
    boundary = world.resolve()
    (world.repo / "deep").mkdir()
    git(world.repo / "deep", "init", "-q", ".")
    git(world.repo, "clone", "-q", str(library), "clone")
    git(world.repo, "init", "-q", "--bare", "bare")
    assert {os.path.relpath(found.path, world.repo): found.quarantine for found in appeared(boundary, since=0)} == {
        "deep/.git": False,
        "clone/.git": False,
    }


HEAD = {"HEAD": "ref: refs/heads/main", "objects": None, "refs": None}
CLEAN = '[core]\n\trepositoryformatversion = 0\n\tbare = false\n[remote "origin"]\n\turl = https://a.example/x\n'
PLANTED: dict[str, dict[str, str | Link | None]] = {
    "fsmonitor": {"config": "[core]fsmonitor=touch /x"},
    "hooks path": {"config": CLEAN + "[core]\nhooksPath = ../h"},
    "include": {"config": CLEAN + "[include]\npath = /x"},
    "alias": {"config": "[alias]\nstatus = !sh x"},
    "filter": {"config": '[filter "a]b"] clean = sh x'},
    "external transport": {"config": '[remote "origin"]\nurl = ext::sh -c x'},
    "unknown": {"config": "[new]\nthing = 1"},
    "broken": {"config": CLEAN + "[core\n"},
    "hook": {"config": CLEAN, "hooks/post-checkout": "x"},
    "hooks link": {"config": CLEAN, "hooks": Link("../h")},
    "config link": {"config": Link("../../elsewhere")},
    "commondir": {"config": CLEAN, "commondir": "/elsewhere"},
    "modules": {"config": CLEAN, "modules/x/config": "x"},
    "alternates": {"config": CLEAN, "objects/info/alternates": "/elsewhere"},
    "huge": {"config": CLEAN + "#" * (300 << 10)},
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_new_repository_that_says_more_is_to_be_quarantined(world: World, what: str) -> None:
    content = {f"a/.git/{name}": text for name, text in (HEAD | PLANTED[what]).items()}
    assert planted(world, content) == {"a/.git": True}


@pytest.mark.parametrize("what", PLANTED)
def test_a_new_bare_repository_that_says_more_loses_what_makes_it_one(world: World, what: str) -> None:
    content = {f"a/b/{name}": text for name, text in (HEAD | PLANTED[what]).items()}
    assert planted(world, content) == {"a/b/HEAD": True}


def test_a_bare_repository_beside_a_git_folder_that_is_none_is_found(world: World) -> None:
    content = {f"a/{name}": text for name, text in (HEAD | PLANTED["fsmonitor"]).items()}
    assert planted(world, content | {"a/.git": None}) == {"a/.git": False, "a/HEAD": True}


def test_a_bare_repository_may_have_its_objects_elsewhere(world: World) -> None:
    content: dict[str, str | Link | None] = {"a/HEAD": "ref: refs/heads/main", "a/commondir": "x"}
    content |= {"a/x/config": "[core]fsmonitor=touch /x", "a/x/objects": None, "a/x/refs": None}
    assert planted(world, content) == {"a/HEAD": True}


EVIL: dict[str, str | Link | None] = {"HEAD": "x", "config": "[core]fsmonitor=touch /x", "objects": None, "refs": None}


def test_a_repository_is_found_however_many_folders_lie_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {f"{n}": None for n in range(10_100)} | {f"0/1/.git/{name}": text for name, text in EVIL.items()}
    assert planted(world, content) == {"0/1/.git": True}
    monkeypatch.setattr("skep_policy.aftermath.MAX_LOOKED", 3)
    assert any("could not be looked into" in found.reason for found in appeared(world.resolve(), since=0))


@pytest.mark.parametrize("place", ["a/objects/x", ".vscode/x", "a/refs"])
def test_no_name_is_a_place_to_hide_a_repository_behind(world: World, place: str) -> None:
    around: dict[str, str | Link | None] = {"a/HEAD": "ref: refs/heads/main", "a/objects": None, "a/refs": None}
    found = planted(world, around | {f"{place}/.git/{name}": text for name, text in EVIL.items()})
    assert found[f"{place}/.git"]


def test_dependencies_are_looked_into_when_they_may_have_been_made_submodules(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(world.repo)
    evil = {f"node_modules/new/.git/{name}": text for name, text in EVIL.items()}
    assert planted(world, evil | {"node_modules/plain/.git": None, "node_modules/x/.envrc": "x"}) == {}
    boundary = world.resolve("[filesystem]\ngit = true")
    assert [found.path for found in appeared(boundary, since=0)] == [f"{world.repo}/node_modules/new/.git"]
    assert appeared(boundary, since=time.time_ns() + 10**12) == ()  # it was there before


def test_a_new_git_folder_of_a_submodule_is_looked_at(world: World) -> None:
    repository(world.repo)
    boundary = world.resolve("[filesystem]\ngit = true")
    modules = {
        "evil": EVIL,
        "hook": {"HEAD": "x", "config": CLEAN, "hooks/post-checkout": "x"},
        "away": {"HEAD": "x", "config": CLEAN + "[core]\nworktree = /home"},
        "own": {"HEAD": "x", "config": CLEAN + "[core]\nworktree = ../../hooks"},
        "deep/plain": {"HEAD": "x", "config": CLEAN + "[core]\nworktree = ../../../../lib"},
    }
    for name, content in modules.items():
        world.add({f"home/repo/.git/modules/{name}/{part}": text for part, text in content.items()})
    found = {os.path.relpath(found.path, world.repo): found.quarantine for found in appeared(boundary, since=0)}
    assert found == {f".git/modules/{name}": True for name in ("away", "evil", "hook", "own")}
    assert appeared(world.resolve("[filesystem]\ngit = true"), since=0) == ()


@pytest.mark.parametrize("end", [4080, 4089, 4092, 4095])
def test_a_path_that_is_too_long_to_be_looked_at_fails_nothing(world: World, end: int) -> None:
    boundary = world.resolve()
    world.add({f"home/repo/a/.git/{name}": text for name, text in EVIL.items()})
    folder = os.open(world.repo, os.O_RDONLY)
    length = len(str(world.repo))
    while length < end - 1:
        left = end - 1 - length
        name = "x" * (left if left <= 200 else min(200, left - 2))
        os.mkdir(name, dir_fd=folder)
        deeper = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder, length = deeper, length + 1 + len(name)
    os.mkdir(".git", dir_fd=folder)
    os.close(folder)
    assert f"{world.repo}/a/.git" in {found.path for found in appeared(boundary, since=0) if found.quarantine}


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists everything")
def test_a_folder_closed_for_listing_is_told_and_what_can_be_named_in_it_found(world: World) -> None:
    boundary = world.resolve()
    world.add({f"home/repo/a/.git/{name}": text for name, text in EVIL.items()} | {"home/repo/b/f": "x"})
    (world.repo / "a").chmod(0o311)
    (world.repo / "b").chmod(0)
    try:
        found = {os.path.relpath(found.path, world.repo): found.quarantine for found in appeared(boundary, since=0)}
        assert found == {"a": False, "a/.git": True, "b": False}
        assert appeared(world.resolve(), since=0) == ()
    finally:
        (world.repo / "a").chmod(0o755)
        (world.repo / "b").chmod(0o755)


def test_a_pointer_or_a_link_where_a_repository_belongs_is_to_be_quarantined(world: World) -> None:
    content: dict[str, str | Link | None] = {
        "a/.git": "gitdir: /elsewhere",
        "b/.git": Link("/elsewhere"),
        "c/.git": Link(".."),
    }
    assert planted(world, content) == {"a/.git": True, "b/.git": True, "c/.git": True}


def test_what_the_host_runs_by_itself_is_found_at_any_depth_and_what_was_there_is_not(world: World) -> None:
    world.add(
        {"home/repo/old/.vscode/tasks.json": "x", "home/repo/old/sub/.git/HEAD": "x", "home/repo/old/bare/HEAD": "x"}
    )
    world.add({"home/repo/old/bare/objects": None, "home/repo/old/bare/refs": None})
    content: dict[str, str | Link | None] = {"new/deep/.envrc": "x", "node_modules/p/.envrc": "x", "new/plain": "x"}
    assert planted(world, content) == {"new/deep/.envrc": False}


def test_nothing_appears_in_a_copy(world: World) -> None:
    world.add({"copy/f": "x"})
    boundary = world.resolve(mapped={str(world.repo): f"{world.root}/copy"})
    world.add({"home/repo/a/.envrc": "x", "copy/a/.envrc": "x"})
    assert appeared(boundary, since=0) == ()


def test_a_bare_repository_in_the_workspace_is_guarded(world: World) -> None:
    git(world.repo, "init", "-q", "--bare", "fixtures/bare")
    boundary = world.resolve()
    bare = "home/repo/fixtures/bare"
    assert access(world, boundary, f"{bare}/config", f"{bare}/hooks/x", f"{bare}/refs/heads/x") == [READ, READ, WRITE]


# The configuration syntax


def listed(text: str) -> list[tuple[str, str]] | None:
    """What git itself reads: (name, value) of each setting, or None when it refuses the file."""
    done = subprocess.run(
        ["git", "config", "--file", "-", "--list", "-z"],
        input=text.encode(),
        capture_output=True,
        env={"PATH": os.environ["PATH"]},
    )
    if done.returncode != 0:
        return None
    items = [item.partition("\n") for item in done.stdout.decode().split("\0")[:-1]]
    return [(name, value if newline else "true") for name, newline, value in items]


def read(text: str) -> list[tuple[str, str]] | None:
    said = parse(text)
    if not said.whole:
        return None
    names: list[tuple[str, str]] = []
    for setting in said.settings:
        section, _, key = setting.name.partition(".")
        names.append((".".join(filter(None, (section, setting.subsection, key))), setting.value))
    return names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[core]\n\thooksPath = a\n", [("core.hookspath", "a")]),
        ("[CORE] HooksPath=a", [("core.hookspath", "a")]),
        ('[filter "x.Y"]\nclean = a b # c\n', [("filter.x.Y.clean", "a b")]),
        ('[filter "a]b"] clean = x', [("filter.a]b.clean", "x")]),
        ('[a]\nb = "x # y" ; z', [("a.b", "x # y")]),
        ('[a]\nb = \\"x\\" \\\\ \\t\n', [("a.b", '"x" \\ \t')]),
        ("[a]\nb = x\\\n y\n", [("a.b", "x y")]),
        ("[a]\n# c \\\nb = x\n", [("a.b", "x")]),
        ("[a]\nb = x # c \\\nc = y\n", [("a.b", "x"), ("a.c", "y")]),
        ("[a]\nb\n", [("a.b", "true")]),
        ("[a]\r\nb = x\r\n", [("a.b", "x")]),
        ("[a.SUB]\nb = x\n", [("a.sub.b", "x")]),
        ("[a]\n# b = 1\n; c = 2\n\n", []),
        ("[a\nb = 1", None),
        ("[a]\n= x", None),
        ('[a]\nb = "x', None),
        ("[a]\nb = \\x", None),
        ("[a]\nb c = x", None),
    ],
)
def test_configuration_is_read_as_git_reads_it(text: str, expected: list[tuple[str, str]] | None) -> None:
    assert read(text) == expected == listed(text)


PIECES = [
    "[core]",
    '[filter "x"]',
    "[a.b]",
    "key",
    "=",
    " ",
    "\t",
    "\n",
    "value",
    '"',
    "\\",
    "#",
    ";",
    "\\\n",
    "]",
    "-",
    "\\n",
    "\r\n",
]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_text_means_more_to_git_than_to_us(text: str) -> None:
    """What git obeys we see, with the same value but for tabs, which it reads in two ways. Where git refuses a file,
    what we saw of it does not matter.
    """
    expected = listed(text)
    if expected is not None:
        assert spaced(read(text)) == spaced(expected)


def spaced(settings: list[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
    return settings and [(name, value.replace("\t", " ").replace("\r", " ")) for name, value in settings]


def test_a_path_with_a_tab_is_named_in_both_ways_that_git_reads_it() -> None:
    said = parse("[core]\nhooksPath = a\tb\nattributesFile = c d\n[include]\npath = x\ty\n")
    assert said.named_files() == ["a\tb", "c d", "a b"] and said.includes() == ["x\ty", "x y"]
    assert listed("[core]\nhooksPath = a\tb\n") in ([("core.hookspath", "a\tb")], [("core.hookspath", "a b")])


@given(st.text(max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    parse(text).is_harmless()


def test_what_configuration_runs_and_names() -> None:
    text = '[includeIf "gitdir:~/"]\npath = ~/x\n[alias]\nl = log\ns = !sh s\n'
    said = parse(text + "[core]\nhooksPath = h\nhooksPath = h2\npager=less")
    assert said.includes() == ["~/x"] and said.commands() == ["sh s", "less"] and said.named_files() == ["h", "h2"]
    assert said.last("core.hookspath") == "h2" and said.last("core.worktree") is None
    assert not said.is_harmless() and parse("").is_harmless()


def test_a_program_put_in_front_of_another_on_path_is_reported(world: World) -> None:
    world.add({"home/repo/venv/bin": None, "home/repo/.venv": Link("venv"), "usr/git": "x"})
    boundary = world.resolve(environ={"PATH": f"{world.repo}/.venv/bin:{world.root}/usr"})
    assert appeared(boundary, since=0) == ()
    world.add({"home/repo/venv/bin/git": "x", "home/repo/venv/bin/mine": "x"})
    [found] = appeared(boundary, since=0)
    assert found.path == f"{world.repo}/venv/bin/git" and not found.quarantine
    assert found.reason == f"it stands in front of {world.root}/usr/git on PATH"
