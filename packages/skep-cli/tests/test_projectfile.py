"""Which project file applies, what it may do untrusted, and that trust is in its text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from skep_cli.flags import Flags
from skep_cli.policies import effective, withheld_lines
from skep_cli.projectfile import project_of
from skep_cli.trust import command as trust
from skep_policy import replace
from skep_policy.facts import Facts


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    home = tmp_path / "home"
    (home / "repo/src/deep").mkdir(parents=True)
    (home / "repo/.git").mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(home / "repo")
    return Facts.gather()


def test_the_file_of_the_repository_applies_in_its_subfolders(facts: Facts) -> None:
    repo = Path(facts.home, "repo")
    assert project_of(f"{repo}/src/deep", facts=facts) == f"{repo}/src/deep"
    (repo / "skep.toml").write_text('[network]\ndeny = ["a.example.com"]\n')
    assert project_of(f"{repo}/src/deep", facts=facts) == str(repo)
    policy = effective(Flags(allow=["*"]), facts=facts, project=f"{repo}/src/deep")
    assert policy.rules().decide("b.example.com", 443).allow and not policy.rules().decide("a.example.com", 443).allow


def test_a_file_above_the_repository_or_in_the_home_is_nobodys(facts: Facts) -> None:
    Path(facts.home, "skep.toml").write_text('[network]\ndeny = ["a.example.com"]\n')
    repo, plain = f"{facts.home}/repo", f"{facts.home}/plain/sub"
    os.makedirs(plain)
    assert project_of(repo, facts=facts) == repo
    assert project_of(plain, facts=facts) == plain


def test_what_widens_counts_after_trust_and_no_longer_after_a_change(facts: Facts) -> None:
    file = Path(facts.home, "repo/skep.toml")
    file.write_text('[network]\nallow = ["a.example.com"]\n')
    project = str(file.parent)

    def policy_now() -> tuple[bool, list[str]]:
        policy = effective(Flags(), facts=facts, project=project)
        return policy.rules().decide("a.example.com", 443).allow, withheld_lines(policy, project)

    allowed, lines = policy_now()
    assert not allowed and "network.allow = a.example.com" in lines[0] and f"skep trust {project}" in lines[0]
    asked = CliRunner().invoke(trust, [project])
    assert asked.exit_code == 1 and f"no terminal to ask on; `skep trust --yes {project}` allows it" in asked.output
    assert policy_now()[0] is False
    assert CliRunner().invoke(trust, [project, "--yes"]).exit_code == 0
    assert policy_now() == (True, [])
    file.write_text('[network]\nallow = ["a.example.com", "b.example.com"]\n')
    assert policy_now()[0] is False


def test_trust_is_for_one_place_and_can_be_taken_back(facts: Facts) -> None:
    other = Path(facts.home, "other")
    other.mkdir()
    text = '[network]\nallow = ["a.example.com"]\n'
    for folder in (Path(facts.home, "repo"), other):
        (folder / "skep.toml").write_text(text)
    CliRunner().invoke(trust, [f"{facts.home}/repo", "--yes"])

    def allowed(folder: str) -> bool:
        here = replace(facts, cwd=folder)
        return effective(Flags(), facts=here, project=folder).rules().decide("a.example.com", 443).allow

    assert allowed(f"{facts.home}/repo") and not allowed(str(other))
    CliRunner().invoke(trust, [f"{facts.home}/repo", "--forget"])
    assert not allowed(f"{facts.home}/repo")
