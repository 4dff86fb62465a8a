"""What people install: the built wheels, each alone, and the two that make a sandbox without the command line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from .readme import code_blocks
from .wheelhouse import ROOT, build, clean, environment

PACKAGES = ("skep-policy", "skep-netshim", "skep-bwrap", "skep-seatbelt", "skep-proxy", "skep-cli")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheels"))


def the_wheel(wheels: Path, package: str) -> Path:
    [wheel] = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    return wheel


def run(python: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", *args], env=clean(), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_the_license_the_type_marker_and_nothing_of_the_tests(wheels: Path, package: str) -> None:
    version = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]["version"]
    module = package.replace("-", "_")
    wheel = the_wheel(wheels, package)
    assert wheel.name == f"{module}-{version}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{module}/__init__.py", f"{module}/py.typed", f"{module}-{version}.dist-info/licenses/LICENSE"} <= names
    assert {name.partition("/")[0] for name in names} == {module, f"{module}-{version}.dist-info"}


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_carries_every_data_file_of_its_source(wheels: Path, package: str) -> None:
    source = ROOT / "packages" / package / "src"
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    there = {path for path in there if "__pycache__" not in path}
    assert there <= set(zipfile.ZipFile(the_wheel(wheels, package)).namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_installs_alone_and_every_module_imports(wheels: Path, package: str, tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheels, package)
    done = run(python, "-c", IMPORT_ALL, package.replace("-", "_"))
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 1


def test_the_shim_requires_nothing_and_imports_on_the_oldest_python_it_names(wheels: Path, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(the_wheel(wheels, "skep-netshim"))
    [metadata] = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    assert "Requires-Python: >=3.8" in metadata
    assert not re.search("^Requires-Dist:", metadata, re.MULTILINE)
    archive.extractall(tmp_path)
    for python in oldest_pythons():
        done = subprocess.run([python, "-B", "-c", "import skep_netshim"], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), python


def test_commands_are_there_and_say_what_they_are(wheels: Path, tmp_path: Path) -> None:
    skep = environment(tmp_path / "cli", wheels, "skep-cli").with_name("skep")
    assert "exec" in subprocess.run([skep, "--help"], capture_output=True, text=True, check=True).stdout
    proxy = environment(tmp_path / "proxy", wheels, "skep-proxy").with_name("skep-proxy")
    assert "serve" in subprocess.run([proxy, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.sandbox
@pytest.mark.parametrize("readme", ["README.md", "packages/skep-bwrap/README.md"])
def test_backend_and_proxy_alone_run_a_filtered_command_in_ten_lines(wheels: Path, tmp_path: Path, readme: str) -> None:
    blocks = [block for block in code_blocks(ROOT / readme) if block.mark == "run: skep-bwrap skep-proxy"]
    assert blocks
    python = environment(tmp_path / "env", wheels, "skep-bwrap[bundled]", "skep-proxy")
    for absent in ("skep_cli", "click", "rich"):
        assert "ModuleNotFoundError" in run(python, "-c", f"import {absent}").stderr
    for number, block in enumerate(blocks):
        assert len([line for line in block.text.splitlines() if line.strip()]) <= 10
        script = tmp_path / f"block{number}.py"
        script.write_text(block.text)
        done = run(python, script)
        assert done.returncode == 0, done.stderr
        assert "403" in done.stdout + done.stderr or "not-listed" in done.stdout + done.stderr


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
found = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(1 + len(found))
"""


def oldest_pythons() -> list[str]:
    """Interpreters older than the workspace's own, if this machine has any, and the one that runs this test."""
    found = (shutil.which(f"python3.{minor}") for minor in (8, 9, 10))
    return [sys.executable, *(path for path in found if path and works(path))]


def works(python: str) -> bool:
    """A version manager leaves commands on PATH that start nothing."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
