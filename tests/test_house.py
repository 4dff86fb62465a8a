"""What every package of the workspace has, and what the tree must not have."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
NAMES = {"skep-policy", "skep-netshim", "skep-bwrap", "skep-seatbelt", "skep-proxy", "skep-cli"}
NOT_OURS = {".git", ".venv", ".uv", "dist", "node_modules", "__pycache__", ".hypothesis"}
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".json", ".c", ""}

each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)


def project(package: Path) -> dict[str, object]:
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]


def test_the_house_has_six_distributions() -> None:
    assert {path.name for path in PACKAGES} == NAMES
    workspace = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(workspace["tool"]["uv"]["sources"]) == NAMES
    assert "project" not in workspace


@each_package
def test_package_carries_the_license_as_a_file_of_its_own(package: Path) -> None:
    license = package / "LICENSE"
    assert not license.is_symlink()  # a link breaks the build of the wheel
    assert license.read_bytes() == (ROOT / "LICENSE").read_bytes()


@each_package
def test_package_is_typed_documented_and_tested(package: Path) -> None:
    source = package / "src" / package.name.replace("-", "_")
    assert (source / "py.typed").exists()
    assert (package / "README.md").read_text().startswith(f"# {package.name}\n")
    assert list((package / "tests").glob("test_*.py")) or only_a_name(source)
    assert not list((package / "tests").rglob("__init__.py"))  # importlib mode tells same-named tests apart without


@each_package
def test_changelog_begins_with_the_version_of_the_package(package: Path) -> None:
    headings = re.findall(r"^## (\S+)", (package / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == project(package)["version"]


@each_package
def test_every_requirement_has_a_lower_bound(package: Path) -> None:
    requirements = project(package)["dependencies"]
    assert isinstance(requirements, list)
    assert [r for r in requirements if ">=" not in str(r)] == []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


@each_package
def test_the_root_of_the_package_says_what_its_api_is(package: Path) -> None:
    source = package / "src" / package.name.replace("-", "_")
    assert re.search(r"^__all__\b.* = \[", (source / "__init__.py").read_text(), re.MULTILINE) or only_a_name(source)


def only_a_name(source: Path) -> bool:
    """The package is not built yet: it holds its place in the workspace."""
    return [path.name for path in source.rglob("*.py")] == ["__init__.py"]


def test_registry_hosts_stand_in_the_lock_file_only() -> None:
    hosts = set(re.findall(r"https?://([^/\"]+)", (ROOT / "uv.lock").read_text()))
    assert hosts
    named = [f"{path.relative_to(ROOT)}: {host}" for path, text in texts() for host in hosts if host in text]
    assert named == []


def test_no_path_of_this_machine_stands_in_the_tree() -> None:
    places = {f"{ROOT}/", f"{Path.home()}/"} - {"//"}
    named = [f"{path.relative_to(ROOT)}: {place}" for path, text in texts() for place in places if place in text]
    assert named == []


def test_no_module_is_named_for_nothing() -> None:
    vague = {"utils.py", "util.py", "helpers.py", "common.py", "core.py", "misc.py"}
    assert [str(path.relative_to(ROOT)) for path, _ in texts() if path.name in vague] == []


def test_modules_stay_readable_in_one_sitting() -> None:
    long = {str(path.relative_to(ROOT)): lines for path, lines in sources() if lines > 400}
    # The shim is the whole program that runs inside: one file by design.
    assert long.keys() - {"packages/skep-netshim/src/skep_netshim/shim.py"} == set()


def sources() -> Iterator[tuple[Path, int]]:
    for path in ROOT.glob("packages/*/src/**/*.py"):
        yield path, path.read_bytes().count(b"\n")


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file but uv.lock; walked, not asked of git, so that a copy without `.git` is judged too."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_OURS and not name.endswith("_cache")]
        for name in files:
            path = Path(folder, name)
            if path.suffix in TEXT and name != "uv.lock" and path.is_file():
                yield path, path.read_text(errors="replace")
