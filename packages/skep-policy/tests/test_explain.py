"""Explain is enforce: the same functions give the answer."""

from __future__ import annotations

import os

import msgspec
import pytest
from skep_policy import Explanation, explain_host, explain_path, replace

from .world import Link, World


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("API.example.com", Explanation("api.example.com:443", True, "*.example.com", "allowed", "flags")),
        ("api.example.com:22", Explanation("api.example.com:22", False, None, "not-listed", None)),
        ("evil.example.com", Explanation("evil.example.com:443", False, "evil.example.com", "denied-by-rule", "flags")),
        ("[2001:DB8::1]:80", Explanation("[2001:db8::1]:80", False, None, "not-listed", None)),
        ("10.0.0.1:22", Explanation("10.0.0.1:22", True, "10.0.0.0/8:22", "allowed", "flags")),
        ("127.1", Explanation("127.1", False, None, "malformed", None)),
        ("a.example.com:0", Explanation("a.example.com:0", False, None, "malformed", None)),
        ("", Explanation("", False, None, "malformed", None)),
    ],
)
def test_a_host_is_explained_by_its_verdict(world: World, target: str, expected: Explanation) -> None:
    effective = world.effective("[network]\nallow = ['*.example.com', '10.0.0.0/8:22']\ndeny = ['evil.example.com']")
    assert explain_host(effective, target) == expected


def test_an_inner_address_is_guarded_where_there_is_a_proxy_and_not_where_there_is_none(world: World) -> None:
    assert explain_host(world.effective("[network]\nallow = ['*']"), "10.0.0.1").allow
    guarded = explain_host(world.effective("[network]\nallow = ['*']\ndeny = ['a.com']"), "10.0.0.1")
    assert (guarded.allow, guarded.reason, guarded.rule) == (False, "private-address", "*")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost"])
def test_localhost_is_loopback_without_being_looked_up(world: World, host: str) -> None:
    guarded = world.effective("[network]\nallow = ['*']\ndeny = ['a.com']")
    assert (explain_host(guarded, host).allow, explain_host(guarded, host).reason) == (False, "private-address")
    assert explain_host(world.effective("[network]\nallow = ['*']"), host).allow
    assert explain_host(
        world.effective("[network]\nallow = ['localhost', '*.localhost']\ndeny = ['a.com']"), host
    ).allow


def test_a_path_is_explained_by_the_boundary(world: World) -> None:
    world.add({"home/.ssh/key": "x", "home/repo/.vscode/x": "x", "home/repo/out": Link("/etc"), "home/repo/f": "x"})
    boundary = world.resolve("[filesystem]\nhide = ['secret']")
    answers = {
        "f": ("write: the workspace", True, str(world.repo)),
        "new/file": ("write: the workspace", True, str(world.repo)),
        ".vscode/x": ("read: VS Code runs tasks and settings of it", True, f"{world.repo}/.vscode"),
        "~/.ssh/key": ("hidden: ssh keys, and the configuration ssh runs commands from", False, f"{world.home}/.ssh"),
        "out/hosts": ("read: nothing hides it, and no writable root covers it", True, None),
        "/etc": ("read: nothing hides it, and no writable root covers it", True, None),
    }
    for text, (reason, allow, rule) in answers.items():
        explanation = explain_path(boundary, text)
        assert (explanation.reason, explanation.allow, explanation.rule) == (reason, allow, rule), text
        assert explanation.allow == (boundary.access_to(explanation.target) > 0)
    assert explain_path(boundary, "out/hosts").target == "/etc/hosts"
    minimal = world.resolve("[filesystem]\nread = 'minimal'")
    assert explain_path(minimal, "/srv/x").reason == 'hidden: read = "minimal" does not list it'


def test_a_store_that_is_not_there_is_explained_as_what_it_would_be(world: World) -> None:
    def explained(text: str, policy: str = "", **how: str) -> Explanation:
        facts = replace(world.facts(), **how)
        return explain_path(world.resolve(policy, facts=facts, absent_too=True), text)

    for text in ("~/.ssh", "~/.ssh/key", "~/.config/gh/hosts.yml"):
        assert not explained(text).allow and explained(text).reason.endswith(
            "; it does not exist, and is hidden from the first launch that finds it"
        )
    assert explained("~/.ssh/key", "[filesystem]\ngrant = ['~/.ssh']").allow
    assert explained("~/.plain/key").allow
    world.add({"home/.ssh/key": "x"})
    assert explained("~/.ssh/key").reason == "hidden: ssh keys, and the configuration ssh runs commands from"
    assert all(rule.kind != "absent" for rule in world.resolve().hides)


def test_what_is_looked_at_afterwards_is_explained_so(world: World) -> None:
    boundary = world.resolve()
    assert explain_path(boundary, ".envrc").reason == "write: the workspace; looked at afterwards: direnv runs it on cd"
    assert explain_path(boundary, ".git/config").reason.startswith("write: the workspace; looked at afterwards: a repo")
    assert explain_path(boundary, "f").reason == "write: the workspace"


def test_a_path_of_a_copy_is_explained_as_the_worker_sees_it(world: World) -> None:
    world.add({"copy/link": Link("../.ssh"), "home/.ssh/key": "x"})
    boundary = world.resolve(mapped={str(world.repo): f"{world.root}/copy"})
    assert explain_path(boundary, "link/key").target == f"{world.home}/.ssh/key"
    assert not explain_path(boundary, "link/key").allow


def test_the_keys_scripts_read_stay(world: World) -> None:
    explanation = explain_host(world.effective(), "a.com")
    assert list(msgspec.to_builtins(explanation)) == ["target", "allow", "rule", "reason", "source"]
    assert os.path.isabs(explain_path(world.resolve(), "x").target)
