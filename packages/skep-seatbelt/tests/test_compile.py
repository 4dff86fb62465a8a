"""From a boundary to a launch, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import skep_seatbelt
from msgspec.json import decode
from skep_policy.boundary import Limits
from skep_policy.policy import Policy
from skep_seatbelt import KEYS, PROXY_USER, Unenforceable

from .boundaries import HOME, PROXY, PYTHON, REPO, SHIM, boundary, hide, launch, root


def test_the_command_is_sandbox_exec_by_its_path_around_the_first_program():
    one = launch(boundary())
    assert one.argv == ("/usr/bin/sandbox-exec", "-f", "{path:profile}", PYTHON, "-I", "-S", SHIM, "{fd:control}")
    assert one.files["profile"].decode() == one.evidence


def test_no_secret_stands_in_argv_or_evidence():
    one = launch(boundary(allow=["example.com"], env={"API_KEY": "s3cret"}))
    visible = " ".join(one.argv) + one.evidence
    assert PROXY.token not in visible and "s3cret" not in visible and "make" not in " ".join(one.argv)
    env = decode(one.config)["env"]
    assert env["API_KEY"] == "s3cret"
    assert env["https_proxy"] == env["HTTP_PROXY"] == f"http://{PROXY_USER}:{PROXY.token}@127.0.0.1:3128"


def test_without_a_network_nothing_names_a_proxy():
    told = decode(launch(boundary(), proxy=None).config)
    assert told["port"] is None and not [name for name in told["env"] if "proxy" in name.lower()]
    open_network = decode(launch(boundary(allow=["*"])).config)
    assert open_network["port"] is None and "https_proxy" not in open_network["env"]


def test_a_proxy_is_named_for_an_empty_allowlist_too_so_that_it_denies_by_name():
    told = decode(launch(boundary()).config)
    assert told["port"] == PROXY.port and PROXY.token in told["env"]["https_proxy"]


def test_ssh_is_led_through_the_proxy_unless_the_operator_said_otherwise():
    helper = f"{PYTHON} -I -S {SHIM.replace('shim', 'connect')}"
    env = decode(launch(boundary(allow=["example.com"])).config)["env"]
    assert env["SKEP_PROXY_COMMAND"] == f"{helper} %h %p" and helper in env["GIT_SSH_COMMAND"]
    own = decode(launch(boundary(allow=["example.com"], env={"GIT_SSH_COMMAND": "mine"})).config)["env"]
    assert own["GIT_SSH_COMMAND"] == "mine"
    odd = decode(launch(boundary(allow=["example.com"]), python="/Users/a b/python3").config)["env"]
    assert "SKEP_PROXY_COMMAND" not in odd
    assert "GIT_SSH_COMMAND" not in decode(launch(boundary(), proxy=None).config)["env"]


def test_caches_of_apples_tools_go_to_scratch():
    env = decode(launch(boundary()).config)["env"]
    assert env["CLANG_MODULE_CACHE_PATH"].startswith(env["TMPDIR"]) and env["xcrun_nocache"] == "1"


def test_what_cannot_link_is_told_to_copy_unless_the_operator_said_otherwise():
    env = decode(launch(boundary()).config)["env"]
    assert env["UV_LINK_MODE"] == env["npm_config_package_import_method"] == "copy"
    assert decode(launch(boundary(env={"UV_LINK_MODE": "symlink"})).config)["env"]["UV_LINK_MODE"] == "symlink"


def test_what_is_tried_from_inside_is_outside_every_root():
    told = decode(launch(boundary(hides=(hide(f"{HOME}/.ssh"), hide(f"{HOME}/.aws", "absent")))).config)
    assert told["forbidden_write"].startswith(HOME) and not told["forbidden_write"].startswith(REPO)
    assert told["hidden"] == [f"{HOME}/.ssh"]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"limits": Limits(memory=1 << 30)}, "limits.memory"),
        ({"mapped": {REPO: "/private/tmp/copy"}}, "workspace"),
        ({"uid": 0}, "ordinary user"),
        ({"devices": ("/private/tmp/x",)}, "filesystem.devices"),
        ({"env": {"DYLD_INSERT_LIBRARIES": "/x"}}, "DYLD_INSERT_LIBRARIES"),
        ({"roots": (root("/Users/u/a\nb"),)}, "control character"),
        ({"roots": (root("/"),)}, "filesystem.write"),
        ({"hides": (hide("/opt/homebrew"),)}, "filesystem.hide"),
    ],
)
def test_what_macos_cannot_hold_is_refused_by_name(given: dict[str, Any], word: str):
    with pytest.raises(Unenforceable, match=word) as caught:
        launch(boundary(**given))
    assert "\n" not in str(caught.value)
    assert launch(boundary())


def test_domains_without_a_proxy_are_refused():
    with pytest.raises(Unenforceable, match="proxy"):
        launch(boundary(allow=["example.com"]), proxy=None)


def test_a_service_that_acts_outside_cannot_be_granted():
    with pytest.raises(Unenforceable, match="opens applications"):
        launch(boundary(), services=["com.apple.coreservices.launchservicesd"])
    assert launch(boundary(), services=["com.apple.fonts"])


@pytest.mark.parametrize("tag", ["", 'a"b', "a b", "é", "a\n"])
def test_a_tag_is_letters_digits_and_dashes(tag: str):
    with pytest.raises(ValueError, match="tag"):
        launch(boundary(), tag=tag)


def test_every_policy_key_has_a_meaning_here():
    fields = {
        f"{table.encode_name}.{field.encode_name}"
        for table in msgspec.structs.fields(Policy)
        for field in msgspec.structs.fields(table.type)
    }
    assert set(KEYS) == fields


def test_the_surface_is_what_all_says():
    names = {name for name in vars(skep_seatbelt) if not name.startswith("_")}
    modules = {name for name in names if type(getattr(skep_seatbelt, name)).__name__ == "module"}
    assert set(skep_seatbelt.__all__) >= names - modules - {"annotations"}
