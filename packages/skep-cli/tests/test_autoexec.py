"""The auto-exec surface: data, and what it matches."""

from __future__ import annotations

import pytest
from skep_cli.autoexec import leads_out, patterns, reason_for, surface
from skep_cli.git.trees import EXECUTABLE, FILE, LINK, Change, Entry


def entry(mode: int = FILE) -> Entry:
    return Entry(mode, "1" * 40)


KNOWN = """
    .gitattributes deep/down/.gitattributes .husky/pre-commit .github/workflows/x.yml .gitlab-ci.yml Jenkinsfile
    .vscode/tasks.json sub/.vscode/x/y .idea/workspace.xml .devcontainer/devcontainer.json .envrc .env.local
    CLAUDE.md AGENTS.md .mcp.json skep.toml conftest.py tests/conftest.py setup.py x.pth
    package.json web/package.json vite.config.ts Makefile MAKEFILE lib/x.mk Dockerfile Dockerfile.dev
    Cargo.toml build.rs .cargo/config.toml go.mod pom.xml gradlew gradle/wrapper/gradle-wrapper.jar Gemfile
"""
ORDINARY = """
    calc.py src/main.rs README.md github/workflows/x.yml vscode/x package.json.md docs/envrc x/gradle/wrapper/y
    mymakefile
"""


@pytest.mark.parametrize("path", KNOWN.split())
def test_what_runs_by_itself_is_known_with_a_reason(path: str) -> None:
    assert reason_for(path)


@pytest.mark.parametrize("path", ORDINARY.split())
def test_ordinary_files_are_not_pointed_out(path: str) -> None:
    assert reason_for(path) is None


def test_every_entry_has_a_reason_and_no_pattern_stands_twice() -> None:
    texts = [pattern.text for pattern in patterns()]
    assert len(texts) == len(set(texts)) and all(pattern.reason for pattern in patterns())
    assert all(text == text.lower() for text in texts), "case does not count: write it low"


def test_deletions_new_executables_and_links_are_surface_too() -> None:
    changes = [
        Change("Makefile", entry(), None),
        Change("a.sh", None, entry(EXECUTABLE)),
        Change("b.sh", entry(EXECUTABLE), Entry(EXECUTABLE, "2" * 40)),
        Change("l", None, entry(LINK)),
        Change("gone.sh", entry(EXECUTABLE), None),
        Change("plain", None, entry()),
    ]
    assert [(item.path, item.reason.split(":")[0]) for item in surface(changes)] == [
        *(("Makefile", "a build tool runs it"), ("a.sh", "newly executable"), ("l", "a link"))
    ]


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("l", "/etc/passwd", True),
        ("l", "..", True),
        ("d/l", "..", False),
        ("d/l", "../..", True),
        ("d/l", "../x/../../y", True),
        ("l", "d/../x", False),
        ("l", "./x", False),
        ("a/b/l", "../../x", False),
        ("a/b/l", "../../../x", True),
        ("l", "x/../../y", True),
    ],
)
def test_a_link_that_leaves_the_tree_is_known(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out
