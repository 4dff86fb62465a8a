"""A policy becomes a boundary. Every denial stands beside its allow twin."""

from __future__ import annotations

import os
import pickle
import pwd
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from skep_policy import Access, Boundary, Facts, Layer, PolicyError, merge, parse_policy, replace, resolve
from skep_policy.facts import own_code

from .world import Link, World

WRITE, READ, HIDDEN = Access.WRITE, Access.READ, Access.HIDDEN


def refused(world: World, policy: str, **how: Any) -> str:
    with pytest.raises(PolicyError) as error:
        world.resolve(policy, **how)
    assert str(error.value).isprintable()
    return str(error.value)


def test_the_workspace_is_writable_and_the_rest_is_not(world: World) -> None:
    world.add({"home/repo/f": "x", "home/other": "x"})
    boundary = world.resolve()
    assert world.access(boundary, "home/repo/f") == WRITE
    assert world.access(boundary, "home/repo") == WRITE
    assert [world.access(boundary, path) for path in ("home/other", "home", "home/repo2", "/etc/passwd", "/")] == [
        READ
    ] * 5
    assert (boundary.workspace, boundary.cwd, boundary.home) == (str(world.repo), str(world.repo), str(world.home))
    assert boundary.read == "host" and boundary.rules.mode == "none"


def test_a_boundary_survives_being_written_down(world: World) -> None:
    world.add({"home/.ssh/key": "x", "home/repo/.git/config": ""})
    policy = "[network]\nallow = ['a.com']\n[limits]\nwall = '1m'\nmemory = '1GiB'\n[filesystem]\nread = 'minimal'"
    boundary = world.resolve(policy, strict=True)
    assert pickle.loads(pickle.dumps(boundary)) == boundary
    assert boundary.strict and boundary.limits.wall == 60 and boundary.limits.memory == 1 << 30


def test_resolving_twice_gives_the_same_and_parents_come_first(world: World) -> None:
    world.add({"home/out/a/b": None, "home/repo/.vscode/x": "x"})
    policy = "[filesystem]\nwrite = ['~/out/a/b', '~/out', '~/out/', '~/out/a/../a']"
    boundary = world.resolve(policy)
    assert boundary == world.resolve(policy)
    roots = [os.path.relpath(root.path, world.root) for root in boundary.roots]
    assert roots == ["home/out", "home/repo", "home/out/a", "home/out/a/b"]


# Roots


def test_an_extra_root_is_writable_where_its_links_lead(world: World) -> None:
    world.add({"data/cache/f": "x", "home/cache": Link("../data/cache")})
    boundary = world.resolve("[filesystem]\nwrite = ['~/cache']")
    assert world.access(boundary, "data/cache/f") == WRITE and world.access(boundary, "data") == READ


def test_an_absent_root_is_refused_with_the_command_that_makes_it(world: World) -> None:
    text = refused(world, "[filesystem]\nwrite = ['~/a b']")
    assert f"mkdir -p '{world.home}/a b'" in text and text.startswith("flags: filesystem.write: ")
    (world.home / "a b").mkdir()
    assert world.resolve("[filesystem]\nwrite = ['~/a b']")


@pytest.mark.parametrize("path", ["/", "/proc", "/proc/self", "/sys/kernel", "/dev", "/dev/shm"])
def test_what_is_no_folder_of_files_is_no_root(world: World, path: str) -> None:
    assert "cannot be writable" in refused(world, f"[filesystem]\nwrite = ['{path}']")
    assert "(the workspace); start it in the folder of a project" in refused(world, "", workspace=path)


def test_a_workspace_must_be_a_folder(world: World) -> None:
    world.add({"home/file": "x", "home/link": Link("repo")})
    assert "not a folder" in refused(world, "", workspace=str(world.home / "file"))
    assert "not a folder" in refused(world, "", workspace=str(world.home / "absent"))
    assert world.resolve(workspace=str(world.home / "link")).workspace == str(world.repo)


def test_the_folder_is_kept_where_it_is_in_the_workspace(world: World) -> None:
    world.add({"home/repo/sub/f": "x"})
    inside = replace(world.facts(), cwd=f"{world.repo}/sub")
    assert world.resolve(facts=inside, workspace=str(world.repo)).cwd == f"{world.repo}/sub"
    outside = replace(world.facts(), cwd=str(world.home))
    assert world.resolve(facts=outside, workspace=str(world.repo)).cwd == str(world.repo)


def test_relative_paths_start_at_the_folder_of_their_layer(world: World) -> None:
    world.add({"home/.config/skep/data": None, "home/repo/sub/data": None, "home/repo/data": None, "home/data": None})
    layers = [
        Layer("user", parse_policy("[filesystem]\nhide = ['data']", source="user"), base=f"{world.home}/.config/skep"),
        Layer("project", parse_policy("[filesystem]\nhide = ['./data']", source="project"), base=str(world.repo)),
        Layer("flags", parse_policy("[filesystem]\nhide = ['../data']", source="flags"), base=f"{world.repo}/sub"),
        Layer("other", parse_policy("[filesystem]\nhide = ['sub/data']", source="other")),
    ]
    boundary = resolve(merge(layers), facts=world.facts())
    hidden = {os.path.relpath(rule.path, world.home): rule.source for rule in boundary.hides}
    assert hidden.items() >= {".config/skep/data": "user", "repo/data": "project", "repo/sub/data": "other"}.items()


def test_a_copy_stands_at_the_path_of_the_repository(world: World) -> None:
    world.add({"home/.local/state/skep/runs/1/copy/.vscode/x": "x", "home/.local/state/skep/runs/1/results": None})
    run = world.home / ".local/state/skep/runs/1"
    boundary = world.resolve(
        mapped={str(world.repo): str(run / "copy")}, extra_roots=[str(run / "results")], workspace=str(world.repo)
    )
    assert boundary.mapped == {str(world.repo): str(run / "copy")}
    assert boundary.access_to(f"{world.repo}/f") == WRITE
    assert boundary.access_to(f"{world.repo}/.vscode/x") == READ
    assert boundary.access_to(f"{run}/results/f") == WRITE
    assert boundary.access_to(f"{run}/copy/f") == HIDDEN and boundary.access_to(f"{run}/other") == HIDDEN


def test_a_folder_of_the_run_is_looked_at_by_no_editor(world: World) -> None:
    world.add({"results/.vscode/x": "x", "results/f": "x"})
    boundary = world.resolve(extra_roots=[f"{world.root}/results"])
    assert world.access(boundary, "results/.vscode/x") == WRITE
    assert not any(name.startswith("results") for name in world.watched(boundary))


def test_what_another_rule_covers_is_left_out(world: World) -> None:
    world.add(
        {"home/repo/.git/hooks/x": "x", "home/repo/.git/config": "[core]\nhooksPath = .git/hooks\n", "home/.ssh/k": "x"}
    )
    boundary = world.resolve("[filesystem]\nprotect = ['.git/hooks', '.git']\nhide = ['~', '~/.ssh/k']")
    inside = [os.path.relpath(rule.path, world.root) for rule in (*boundary.protects, *boundary.hides)]
    assert [name for name in inside if not name.startswith("..")] == ["home/repo/.git", "home"]


def test_a_folder_of_the_run_must_exist(world: World) -> None:
    assert "does not exist" in refused(world, "", extra_roots=[str(world.root / "absent")])


# Hides


STORES = [
    *(".ssh", ".aws", ".gnupg", ".kube", ".docker", ".config/gh", ".config/gcloud", ".netrc", ".git-credentials"),
    *(".npmrc", ".pypirc", ".cargo/credentials.toml", ".mozilla", ".config/google-chrome", ".password-store"),
    *(".local/share/keyrings", ".bash_history", ".zsh_history", ".local/state/skep", ".config/sops", ".pgpass"),
]


@pytest.mark.parametrize("store", STORES)
def test_a_credential_store_is_hidden_and_a_grant_opens_it(world: World, store: str) -> None:
    world.add({f"home/{store}": "hush"})
    assert world.access(world.resolve(), f"home/{store}") == HIDDEN
    for how in (f"~/{store}", f"{world.home}/{store}", f"../{store}", f"~/{store}/"):
        boundary = world.resolve(f"[filesystem]\ngrant = ['{how}']")
        assert world.access(boundary, f"home/{store}") == READ, how


def test_a_broad_grant_opens_nothing_below(world: World) -> None:
    world.add({"home/.config/gh/hosts": "hush", "home/.ssh/key": "hush"})
    for grant in ("~/.config", "~", "/", "~/.config/ghx"):
        boundary = world.resolve(f"[filesystem]\ngrant = ['{grant}']")
        assert world.access(boundary, "home/.config/gh/hosts") == HIDDEN
        assert world.access(boundary, "home/.ssh/key") == HIDDEN


def test_a_narrow_grant_keeps_its_neighbours_hidden(world: World) -> None:
    world.add({"home/.config/gcloud/a/b/key": "x", "home/.config/gcloud/a/c": "x", "home/.config/gcloud/d/e": "x"})
    boundary = world.resolve("[filesystem]\ngrant = ['~/.config/gcloud/a/b']")
    assert world.access(boundary, "home/.config/gcloud/a/b/key") == READ
    assert world.access(boundary, "home/.config/gcloud/a/c") == HIDDEN
    assert world.access(boundary, "home/.config/gcloud/d/e") == HIDDEN


def test_a_grant_of_what_is_absent_below_a_store_opens_nothing(world: World) -> None:
    world.add({"home/.ssh/key": "x"})
    assert world.access(world.resolve("[filesystem]\ngrant = ['~/.ssh/absent']"), "home/.ssh/key") == HIDDEN


def test_a_grant_never_opens_what_the_policy_hides(world: World) -> None:
    world.add({"home/.ssh/key": "x"})
    boundary = world.resolve("[filesystem]\ngrant = ['~/.ssh']\nhide = ['~/.ssh/key']")
    assert world.access(boundary, "home/.ssh/key") == HIDDEN and world.access(boundary, "home/.ssh") == READ


def test_a_store_that_is_a_link_is_hidden_where_it_leads(world: World) -> None:
    world.add({"home/dotfiles/ssh/key": "hush", "home/.ssh": Link("dotfiles/ssh"), "home/dotfiles/zshrc": "x"})
    boundary = world.resolve()
    assert world.access(boundary, "home/dotfiles/ssh/key") == HIDDEN
    assert world.access(boundary, "home/dotfiles/zshrc") == READ
    for grant in ("~/.ssh", "~/dotfiles/ssh"):
        assert world.access(world.resolve(f"[filesystem]\ngrant = ['{grant}']"), "home/dotfiles/ssh/key") == READ


def test_the_links_in_a_store_are_hidden_where_they_lead(world: World) -> None:
    """Dotfile managers keep the real files elsewhere in the home folder and link each of them."""
    world.add({
        "home/stow/aws/credentials": "hush",
        "home/.aws/credentials": Link("../stow/aws/credentials"),
        "home/.aws/loop": Link("loop"),
        "home/.aws/up": Link(".."),
        "home/.aws/repo": Link("../repo"),
        "home/.aws/etc": Link("/etc/hostname"),
        "home/.aws/dangling": Link("1234"),
    })  # fmt: skip
    boundary = world.resolve()
    assert world.access(boundary, "home/stow/aws/credentials") == HIDDEN
    assert world.access(boundary, "home/repo/f") == WRITE and world.access(boundary, "/etc/hostname") == READ
    assert world.access(boundary, "home/f") == READ


def test_a_store_is_found_where_the_environment_moved_it(world: World) -> None:
    world.add({"home/k8s/config": "x", "home/xdg/gh/hosts": "x", "home/gpg/key": "x", "home/k8s/other": "x"})
    environ = {
        "KUBECONFIG": f"{world.home}/k8s/config:relative:/absent",
        "XDG_CONFIG_HOME": f"{world.home}/xdg",
        "GNUPGHOME": f"{world.home}/gpg/",
        "HISTFILE": "/dev/null",
    }
    boundary = world.resolve(environ=environ)
    for name in ("k8s/config", "xdg/gh/hosts", "gpg/key"):
        assert world.access(boundary, f"home/{name}") == HIDDEN
    assert world.access(boundary, "home/k8s/other") == READ and boundary.access_to("/dev/null") == READ


def test_stores_are_hidden_in_every_home_of_the_caller(world: World) -> None:
    """`HOME=/elsewhere skep ...` must not open the real one."""
    world.add({"real/.ssh/key": "x", "real/notes": "x", "real/.bashrc": "x"})
    facts = replace(world.facts(), other_homes=(f"{world.root}/real", "/absent/home"))
    boundary = world.resolve(facts=facts)
    assert world.access(boundary, "real/.ssh/key") == HIDDEN and world.access(boundary, "real/notes") == READ
    boundary = world.resolve(f"[filesystem]\nwrite = ['{world.root}/real']", facts=facts)
    assert world.access(boundary, "real/.bashrc") == READ and world.access(boundary, "real/notes") == WRITE
    assert world.access(boundary, "real/.ssh/key") == HIDDEN and "real/.aws" in world.watched(boundary)


@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to a folder"])
def test_what_the_policy_hides_is_hidden(world: World, kind: str) -> None:
    tree = {
        "file": {"out/secret": "x"},
        "folder": {"out/secret/f": "x"},
        "link": {"out/real": "x", "out/secret": Link("real")},
        "link to a folder": {"out/real/f": "x", "out/secret": Link("real")},
    }[kind]
    world.add({**tree, "out/plain": "x"})
    boundary = world.resolve(f"[filesystem]\nhide = ['{world.root}/out/secret']\nwrite = ['{world.root}/out']")
    real = os.path.realpath(world.root / "out/secret")
    assert boundary.access_to(real) == HIDDEN and boundary.access_to(real + "/f") == HIDDEN
    assert world.access(boundary, "out/plain") == WRITE


def test_an_absent_hidden_path_is_watched_where_the_worker_could_make_it(world: World) -> None:
    boundary = world.resolve("[filesystem]\nhide = ['secret', '~/elsewhere']")
    (watched,) = [watched for watched in boundary.watched if watched.path.endswith("/secret")]
    assert watched.quarantine
    assert ("absent", f"{world.home}/elsewhere") in [(rule.kind, rule.path) for rule in boundary.hides]
    assert not os.path.lexists(world.repo / "secret")


def test_an_absent_store_is_watched_where_a_root_covers_the_home(world: World) -> None:
    assert "home/.ssh" in world.watched(world.resolve(f"[filesystem]\nwrite = ['{world.home}']"))
    assert "home/.ssh" not in world.watched(world.resolve())


def test_patterns_hide_what_they_match(world: World) -> None:
    world.add({"home/repo/a/key.pem": "x", "home/repo/key.pem": "x", "home/repo/a/key": "x"})
    boundary = world.resolve("[filesystem]\nhide = ['**/*.pem', '**/*.none']")
    assert world.access(boundary, "home/repo/a/key.pem") == HIDDEN == world.access(boundary, "home/repo/key.pem")
    assert world.access(boundary, "home/repo/a/key") == WRITE


def test_hiding_a_parent_keeps_the_workspace_and_the_folders_of_the_run(world: World) -> None:
    world.add({"home/other": "x", "home/run/results": None})
    boundary = world.resolve("[filesystem]\nhide = ['~']", extra_roots=[f"{world.home}/run/results"])
    assert world.access(boundary, "home/repo/f") == WRITE and world.access(boundary, "home/run/results/f") == WRITE
    assert world.access(boundary, "home/other") == HIDDEN and world.access(boundary, "home/run") == HIDDEN


def test_a_hidden_path_in_the_workspace_of_a_hidden_parent_stays_hidden(world: World) -> None:
    world.add({"home/repo/secret": "x"})
    boundary = world.resolve("[filesystem]\nhide = ['~', 'secret']")
    assert world.access(boundary, "home/repo/secret") == HIDDEN and world.access(boundary, "home/repo/f") == WRITE


def test_hiding_the_workspace_itself_is_refused(world: World) -> None:
    assert "is the workspace too" in refused(world, "[filesystem]\nhide = ['.']")


@pytest.mark.parametrize("path", ["/", "/usr", "/proc"])
def test_hiding_the_system_is_refused(world: World, path: str) -> None:
    assert "every program needs" in refused(world, f"[filesystem]\nhide = ['{path}']")


def test_hiding_a_private_folder_is_a_note(world: World) -> None:
    boundary = world.resolve("[filesystem]\nhide = ['/run']")
    assert any("/run" in note for note in boundary.notes) and boundary.access_to("/run") == READ


def test_a_root_in_a_hidden_folder_is_refused_and_a_grant_mends_it(world: World) -> None:
    world.add({"home/.aws/sso": None, "home/secret/sub": None})
    text = refused(world, "[filesystem]\nwrite = ['~/.aws/sso']")
    assert f"--grant {world.home}/.aws" in text and text.startswith("flags: filesystem.write: ")
    assert (
        world.access(world.resolve("[filesystem]\nwrite = ['~/.aws/sso']\ngrant = ['~/.aws']"), "home/.aws/sso")
        == WRITE
    )
    assert "hide less" in refused(world, "[filesystem]\nwrite = ['~/secret/sub']\nhide = ['~/secret']")


def test_a_workspace_in_a_credential_store_is_refused_and_a_grant_mends_it(world: World) -> None:
    world.add({"home/.ssh/tool": None})
    assert "--grant" in refused(world, "", workspace=f"{world.home}/.ssh/tool")
    assert "--grant" in refused(world, "", workspace=f"{world.home}/.ssh")
    boundary = world.resolve("[filesystem]\ngrant = ['~/.ssh']", workspace=f"{world.home}/.ssh/tool")
    assert boundary.access_to(f"{world.home}/.ssh/tool/f") == WRITE


def test_a_cycle_of_links_is_refused_by_name(world: World) -> None:
    world.add({"home/loop": Link("loop")})
    text = refused(world, "[filesystem]\nhide = ['~/loop']")
    assert "cycle" in text and "loop" in text
    os.unlink(world.home / "loop")
    world.add({"home/repo/.envrc": Link(".envrc")})
    assert ".envrc" in refused(world, "")
    os.unlink(world.repo / ".envrc")
    assert world.resolve()


def test_ten_thousand_hidden_paths_are_not_too_many(world: World) -> None:
    folder = world.root / "many"
    folder.mkdir()
    for number in range(5000):
        (folder / f"{number}.pem").touch()
    entries = ", ".join(f"'{folder}/{number}.pem'" for number in range(5000))
    boundary = world.resolve(f"[filesystem]\nhide = ['{folder}/*.pem', {entries}]")
    assert sum(rule.path.endswith(".pem") for rule in boundary.hides) == 5000
    assert boundary.access_to(f"{folder}/4999.pem") == HIDDEN


# Protects


@pytest.mark.parametrize(
    "name", [".vscode", ".idea", ".envrc", ".mcp.json", ".claude", ".codex", ".cursor", ".husky", "skep.toml"]
)
def test_what_the_host_runs_by_itself_is_protected_where_it_is_and_watched_where_it_is_not(
    world: World, name: str
) -> None:
    boundary = world.resolve()
    assert f"home/repo/{name}" in world.watched(boundary)
    assert world.access(boundary, f"home/repo/{name}") == WRITE
    world.add({f"home/repo/{name}": "x", f"home/repo/packages/deep/{name}": "x", "home/repo/plain": "x"})
    boundary = world.resolve()
    assert world.access(boundary, f"home/repo/{name}") == READ
    assert world.access(boundary, f"home/repo/packages/deep/{name}") == READ
    assert world.access(boundary, "home/repo/plain") == WRITE
    assert f"home/repo/{name}" not in world.watched(boundary)


def test_a_grant_opens_one_protected_entry(world: World) -> None:
    world.add({"home/repo/.vscode/tasks.json": "x", "home/repo/.idea/x": "x", "home/repo/skep.toml": ""})
    boundary = world.resolve("[filesystem]\ngrant = ['.vscode']")
    assert world.access(boundary, "home/repo/.vscode/tasks.json") == WRITE
    assert world.access(boundary, "home/repo/.idea/x") == READ
    assert "grant" in refused(world, "[filesystem]\ngrant = ['.vscode/tasks.json']")
    assert "own policy" in refused(world, "[filesystem]\ngrant = ['skep.toml']")


def test_an_extra_root_is_guarded_like_the_workspace(world: World) -> None:
    world.add({"home/lib/.envrc": "x", "home/lib/f": "x"})
    boundary = world.resolve("[filesystem]\nwrite = ['~/lib']")
    assert world.access(boundary, "home/lib/.envrc") == READ and world.access(boundary, "home/lib/f") == WRITE
    assert "home/lib/.vscode" in world.watched(boundary)


def test_shell_startup_files_are_protected_where_a_root_covers_the_home(world: World) -> None:
    world.add({"home/.bashrc": "x", "home/.config/fish/config.fish": "x", "home/notes": "x"})
    boundary = world.resolve(f"[filesystem]\nwrite = ['{world.home}']")
    assert world.access(boundary, "home/.bashrc") == READ == world.access(boundary, "home/.config/fish/config.fish")
    assert world.access(boundary, "home/notes") == WRITE
    assert "home/.zshrc" in world.watched(boundary)
    assert "home/.zshrc" not in world.watched(world.resolve())


def test_folders_on_path_are_protected_where_a_root_covers_them_and_a_projects_own_are_not(world: World) -> None:
    path = f"{world.home}/tools/bin:{world.repo}/.venv/bin:{world.home}/tools/absent:relative:/usr/bin"
    world.add({"home/tools/bin/x": "x", "home/repo/.venv/bin/x": "x", "home/.cargo/bin/x": "x"})

    def resolved(write: str, *, grant: str = "", workspace: Path | None = None) -> Boundary:
        policy = f"[filesystem]\nwrite = ['{write}']\ngrant = [{grant}]"
        return world.resolve(policy, environ={"PATH": path}, workspace=str(workspace or world.repo))

    boundary = resolved("~/tools")
    assert world.access(boundary, "home/tools/bin/x") == Access.READ
    assert world.access(boundary, "home/tools/share") == Access.WRITE
    assert world.access(boundary, "home/repo/.venv/bin/x") == Access.WRITE
    assert "home/tools/absent" in world.watched(boundary)
    assert world.access(resolved("~/tools", grant="'~/tools/bin'"), "home/tools/bin/x") == Access.WRITE
    home = resolved("~/tools", workspace=world.home)
    assert {world.access(home, f"home/{name}") for name in ("repo/.venv/bin", ".cargo/bin", "tools/bin")} == {
        Access.READ
    }


def test_what_skep_runs_from_is_protected_in_the_users_own_tree_and_no_grant_opens_it(world: World) -> None:
    world.add({"home/repo/.venv/lib/skep_cli/x": "x", "home/repo/src/f": "x"})
    facts = replace(world.facts(), code=(f"{world.repo}/.venv", f"{world.repo}/absent"), python="/usr")
    boundary = world.resolve("[filesystem]\ngrant = ['.venv']", facts=facts)
    assert world.access(boundary, "home/repo/.venv/lib/skep_cli/x") == Access.READ
    assert world.access(boundary, "home/repo/src/f") == Access.WRITE
    assert [rule.reason for rule in boundary.protects] == ["skep itself runs from here"]
    copy = world.resolve(facts=facts, mapped={str(world.repo): str(world.repo)})
    assert world.access(copy, "home/repo/.venv/lib/skep_cli/x") == Access.WRITE  # a run's copy is the worker's
    for workspace in (f"{world.repo}/.venv", f"{world.repo}/.venv/lib"):
        with pytest.raises(PolicyError, match=r"skep itself runs from .*; install skep elsewhere"):
            world.resolve(facts=facts, workspace=workspace)
    inside = replace(world.facts(), python=f"{world.repo}/.venv")
    assert world.access(world.resolve(facts=inside), "home/repo/.venv/lib/x") == Access.READ
    below_python = world.resolve(facts=inside, workspace=f"{world.repo}/.venv/lib")  # as /usr/src/app is
    assert world.access(below_python, "home/repo/.venv/lib/x") == Access.WRITE


def test_what_skep_runs_from_is_its_python_its_environment_and_its_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = Path(os.path.realpath(tmp_path))
    for name in ("editable/skep_cli", "editable/other", "vendored/skep_proxy", "vendored/msgspec", "plain/other"):
        (folder / name).mkdir(parents=True)
    found = [str(folder / name) for name in ("editable", "vendored", "plain")]
    monkeypatch.setattr(sys, "path", [*found, f"{sys.prefix}/lib"])
    environment = {os.path.realpath(sys.prefix)} - {os.path.realpath(sys.base_prefix)}
    assert set(own_code()) == {*environment, f"{folder}/editable/skep_cli", f"{folder}/vendored"}
    monkeypatch.setattr(sys, "pycache_prefix", f"{folder}/bytecode")
    assert f"{folder}/bytecode" in own_code()
    facts = Facts.gather()
    assert (facts.code, facts.python) == (own_code(), os.path.realpath(sys.base_prefix))


@pytest.mark.parametrize("target", ["real", "home/repo/tools"])
def test_a_protected_link_is_protected_where_it_leads_and_remembered(world: World, target: str) -> None:
    world.add({f"{target}/f": "x", "home/repo/.vscode": Link(os.path.relpath(target, "home/repo"))})
    boundary = world.resolve()
    assert world.access(boundary, f"{target}/f") == READ
    assert boundary.links == {f"{world.repo}/.vscode": os.path.relpath(target, "home/repo")}


def test_a_dangling_protected_link_is_watched_where_it_leads(world: World) -> None:
    world.add({"home/repo/.envrc": Link("later/envrc")})
    assert "home/repo/later/envrc" in world.watched(world.resolve())


def test_what_the_policy_protects_is_read_only(world: World) -> None:
    world.add({"home/repo/deploy/f": "x", "home/repo/a/x.lock": "x", "home/repo/f": "x", "home/other": "x"})
    boundary = world.resolve("[filesystem]\nprotect = ['deploy/', '**/*.lock', 'absent', '~/other']")
    assert world.access(boundary, "home/repo/deploy/f") == READ == world.access(boundary, "home/repo/a/x.lock")
    assert world.access(boundary, "home/repo/f") == WRITE
    assert "home/repo/absent" in world.watched(boundary)
    assert not any(rule.path.endswith("/other") for rule in boundary.protects)


def test_protecting_a_parent_outside_of_the_roots_leaves_the_workspace_alone(world: World) -> None:
    assert world.access(world.resolve("[filesystem]\nprotect = ['~']"), "home/repo/f") == WRITE


@pytest.mark.parametrize("policy", ["protect = ['.']", "protect = ['~']\nwrite = ['/work-root']"])
def test_protecting_the_workspace_itself_is_refused(world: World, policy: str) -> None:
    text = refused(world, "[filesystem]\n" + policy.replace("/work-root", str(world.root)))
    assert "read-only; protect less" in text and text.startswith("flags: filesystem.protect: ")


def test_a_root_inside_something_protected_is_a_note_with_the_flag_that_opens_it(world: World) -> None:
    world.add({"home/repo/.vscode/out/f": "x", "home/repo/deploy/out/f": "x"})
    boundary = world.resolve("[filesystem]\nwrite = ['.vscode/out', 'deploy/out']\nprotect = ['deploy']")
    assert world.access(boundary, "home/repo/.vscode/out/f") == READ == world.access(boundary, "home/repo/deploy/out/f")
    first, second = boundary.notes
    assert f"--grant {world.repo}/.vscode" in first and "protected by deploy" in second
    boundary = world.resolve("[filesystem]\nwrite = ['.vscode/out']\ngrant = ['.vscode']")
    assert world.access(boundary, "home/repo/.vscode/out/f") == WRITE and boundary.notes == ()


def test_the_bound_of_the_walk_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep_policy.protects.MAX_FOLDERS", 3)
    world.add({f"home/repo/{n}/f": "x" for n in range(5)})
    assert any("3 folders" in note for note in world.resolve().notes)


# Devices and sockets


def test_devices_are_let_in_by_name(world: World) -> None:
    boundary = world.resolve("[filesystem]\ndevices = ['/dev/null', '/dev/null', '/dev/absent']")
    assert boundary.devices == ("/dev/null",)
    assert any("/dev/absent" in note for note in boundary.notes)
    (link := Path(world.root / "link")).symlink_to("/dev/zero")
    assert stat.S_ISCHR(os.stat(link).st_mode)


def test_what_is_no_device_is_refused(world: World) -> None:
    if not os.path.exists("/dev/shm"):
        pytest.skip("no /dev/shm")
    file = Path(f"/dev/shm/skep-policy-test-{os.getpid()}")
    file.touch()
    try:
        assert "not a device" in refused(world, f"[filesystem]\ndevices = ['{file}']")
    finally:
        file.unlink()


def test_sockets_are_let_in_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        (world.home / "link").symlink_to("../s")
        boundary = world.resolve("[filesystem]\nsockets = ['~/link', '~/absent']")
        assert boundary.sockets == (f"{world.root}/s",) and any("absent" in note for note in boundary.notes)
        world.add({"home/.gnupg/f": "x"})
        os.rename("s", "home/.gnupg/s")
        assert "--grant" in refused(world, "[filesystem]\nsockets = ['~/.gnupg/s']")
        boundary = world.resolve("[filesystem]\nsockets = ['~/.gnupg/s']\ngrant = ['~/.gnupg']")
        assert boundary.sockets == (f"{world.home}/.gnupg/s",)
    assert "not a socket" in refused(world, "[filesystem]\nsockets = ['~/.gnupg/f']")


# Environment


def test_the_environment_is_an_allowlist(world: World) -> None:
    environ = {"GITHUB_TOKEN": "hush", "LC_ALL": "C", "TERM": "xterm", "MY_A": "1", "MY_B": "2", "OTHER": "3"}
    assert world.resolve(environ=environ).env == {
        "HOME": str(world.home),
        "USER": "someone",
        "LOGNAME": "someone",
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        "TERM": "xterm",
    }
    env = world.resolve("[env]\npass = ['MY_*', 'UNSET']\nset = {CI = '1', TERM = 'dumb'}", environ=environ).env
    assert (env["MY_A"], env["MY_B"], env["CI"], env["TERM"]) == ("1", "2", "1", "dumb")
    assert not {"OTHER", "GITHUB_TOKEN", "UNSET"} & env.keys()


def test_a_home_of_no_use_is_not_handed_on(world: World) -> None:
    assert world.resolve(environ={"HOME": "relative"}).env["HOME"] == str(world.home)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/usr/bin:/bin", "/usr/bin:/bin"),
        ("HOME/.ssh/bin:/usr/bin", "/usr/bin"),
        (":/usr/bin::.:relative/bin:/bin", "/usr/bin:/bin"),
        ("/usr/bin:/usr/bin", "/usr/bin"),
        ("", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME/.ssh/bin", "/usr/local/bin:/usr/bin:/bin"),
        ("/absent/bin:/usr/bin", "/absent/bin:/usr/bin"),
    ],
)
def test_path_keeps_what_the_worker_can_look_into(world: World, path: str, kept: str) -> None:
    world.add({"home/.ssh/bin/tool": "x"})
    env = world.resolve(environ={"PATH": path.replace("HOME", str(world.home))}).env
    assert env["PATH"] == kept


def test_a_value_that_is_not_utf8_is_left_out(world: World) -> None:
    assert "LC_X" not in world.resolve(environ={"LC_X": "\udcff", "LC_Y": "y"}).env


def test_a_path_that_is_not_utf8_is_refused_by_name(world: World) -> None:
    folder = os.fsencode(world.root) + b"/caf\xe9"
    os.mkdir(folder)
    assert "not UTF-8" in refused(world, "", workspace=os.fsdecode(folder))


# read = "minimal"


def test_minimal_reads_the_system_the_toolchain_the_roots_and_grants(world: World) -> None:
    world.add({
        "home/.cargo/bin/cargo": "x",
        "home/.cargo/lib/x": "x",
        "home/.gitconfig": "x",
        "home/docs/f": "x",
        "home/other": "x",
        "home/.local/bin/uv": "x",
        "home/.local/share/notes": "x",
    })  # fmt: skip
    environ = {"PATH": f"{world.home}/.cargo/bin:{world.home}/.local/bin:/usr/bin"}
    boundary = world.resolve("[filesystem]\nread = 'minimal'\ngrant = ['~/docs']", environ=environ)
    for name in (".cargo/bin/cargo", ".cargo/lib/x", ".gitconfig", "docs/f", ".local/bin/uv"):
        assert world.access(boundary, f"home/{name}") == READ, name
    assert boundary.access_to("/usr/lib/x") == READ and world.access(boundary, "home/repo/f") == WRITE
    for name in ("other", "", ".local/share/notes"):
        assert world.access(boundary, f"home/{name}") == HIDDEN, name
    assert boundary.access_to("/srv") == HIDDEN
    assert boundary.access_to("/etc/shadow") == HIDDEN


# Facts


def test_facts_come_from_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere")
    facts = Facts.gather()
    assert (facts.home, facts.cwd, facts.uid) == ("/somewhere", os.getcwd(), os.getuid())
    assert pwd.getpwuid(os.getuid()).pw_dir in facts.other_homes
    assert facts.environ["HOME"] == "/somewhere"


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_a_home_that_is_none_comes_from_the_user_database(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    facts = Facts.gather()
    assert facts.home == pwd.getpwuid(os.getuid()).pw_dir and facts.home not in facts.other_homes


def test_a_folder_that_is_gone_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(PolicyError, match="current folder"):
        Facts.gather()


def test_xdg_values_that_are_not_absolute_do_not_count(world: World) -> None:
    facts = world.facts(XDG_STATE_HOME="relative", XDG_CONFIG_HOME="/conf")
    assert facts.state_dir == f"{world.home}/.local/state/skep" and facts.config_file == "/conf/skep/config.toml"
