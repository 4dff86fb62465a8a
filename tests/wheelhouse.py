"""Build the six wheels and install them into fresh environments, with what the lock file pins and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def uv(*args: str | Path, cwd: Path = ROOT) -> str:
    """What uv printed. Raises RuntimeError with everything it said."""
    done = subprocess.run([find_uv(), *args], cwd=cwd, env=clean(), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(map(str, args))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def find_uv() -> str:
    """`uv run` names itself in UV; the README's set-up puts it into `.uv/bin`."""
    candidates = (os.environ.get("UV"), str(ROOT / ".uv/bin/uv"), shutil.which("uv"))
    found = next((path for path in candidates if path and Path(path).exists()), None)
    if found is None:
        raise RuntimeError("no uv: run the tests as README.md says")
    return found


def clean() -> dict[str, str]:
    """The environment without what would lead uv or Python back into the workspace's own environment."""
    return {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }


def build(folder: Path) -> Path:
    """A folder with one wheel per package. `uv sync` left the build backend in uv's cache; else the index is asked."""
    args = ("build", "--quiet", "--wheel", "--all-packages", "--python", sys.executable, "--out-dir", folder)
    try:
        uv(*args, "--offline")
    except RuntimeError:
        uv(*args)
    return folder


def environment(folder: Path, wheels: Path, package: str, *more: str) -> Path:
    """The Python of a new environment with the wheels of `package` and `more`, and what they declare, nothing else.

    Foreign distributions come as the lock file pins them; then the wheels are resolved against those alone, so that a
    requirement they declare and the lock file lacks, or one they forgot, fails here.
    """
    uv("venv", "--quiet", "--python", sys.executable, folder)
    python = folder / "bin/python"
    for name in (package, *more):
        plain, _, extra = name.rstrip("]").partition("[")
        pins = folder / f"pylock.{plain}.toml"
        chosen = ("--extra", extra) if extra else ()
        frozen = ("--frozen", "--package", plain, "--no-dev", "--no-emit-workspace", "--format", "pylock.toml")
        uv("export", "--quiet", *frozen, *chosen, "--output-file", pins)
        if "[[packages]]" in pins.read_text():
            uv("pip", "install", "--quiet", "--python", python, "--requirements", pins)
    uv("pip", "install", "--quiet", "--python", python, "--no-index", "--find-links", wheels, package, *more)
    uv("pip", "check", "--quiet", "--python", python)
    return python
