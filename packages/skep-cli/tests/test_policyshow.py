"""`skep policy show` tells a person what differs, on one screen; `--all` leaves nothing out."""

from __future__ import annotations

import json
from pathlib import Path

from .stage import skep


def test_what_is_set_comes_first_with_its_source_and_what_is_built_in_is_counted(state: Path, repo: Path) -> None:
    (repo / "skep.toml").write_text('[network]\ndeny = ["evil.example.com"]\nallow = ["wide.example.com"]\n')
    flags = ("--allow", "api.example.com", "--protect", "calc.py", "--env", "CI=1")
    done = skep(state, "policy", "show", *flags, cwd=repo)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "set:" and len(lines) <= 25
    assert "  network.allow = api.example.com  (command line)" in lines
    assert f"  network.deny = evil.example.com  ({repo}/skep.toml)" in lines
    assert lines.index("asked for and not granted, until `skep trust`:") + 1 == lines.index(
        f"  network.allow = wide.example.com  ({repo}/skep.toml)"
    )
    assert any(line.startswith(f"  {repo}/calc.py  (command line)") for line in lines)
    assert f"  {repo}  (built-in) the workspace" in lines
    assert not any("env.pass = HOME" in line or "/etc/shadow" in line for line in lines)
    assert lines[-1].startswith("`skep policy show --all`")


def test_nothing_set_is_told_as_that_on_one_screen(state: Path, repo: Path) -> None:
    done = skep(state, "policy", "show", cwd=repo)
    assert done.stdout.startswith("set: nothing") and len(done.stdout.splitlines()) <= 12
    assert "network: nothing may be reached" in done.stdout


def test_all_lists_every_value_every_path_and_every_key(state: Path, repo: Path) -> None:
    flags = ("--hide", "calc.py", "--allow", "*")
    told = skep(state, "policy", "show", "--all", *flags, cwd=repo).stdout.splitlines()
    document = json.loads(skep(state, "policy", "show", "--json", *flags, cwd=repo).stdout)
    for entry in document["entries"]:
        assert f"{entry['key']} = {entry['value']}  ({entry['source']})" in told
    for rule in (*document["roots"], *document["protects"], *document["hides"]):
        assert any(line.startswith(f"  {rule['path']}  ({rule['source']}") for line in told)
    assert all(f"  {key}" in told for key in document["enforcement"])


def test_trust_takes_the_folder_it_is_called_in_and_the_top_of_its_repository(state: Path, repo: Path) -> None:
    (repo / "skep.toml").write_text('[network]\nallow = ["wide.example.com"]\n')
    (repo / "sub").mkdir()
    told = skep(state, "trust", "--yes", cwd=repo / "sub")
    assert told.returncode == 0 and f"{repo}/skep.toml is trusted" in told.stdout, told.stderr
    assert skep(state, "policy", "explain", "wide.example.com", cwd=repo).returncode == 0
    assert "is not trusted" in skep(state, "trust", "--forget", cwd=repo).stdout
    assert skep(state, "policy", "explain", "wide.example.com", cwd=repo).returncode == 1
