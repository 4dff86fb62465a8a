"""Bring what needs no root to the cache: packages of PyPI, each in an environment of its own, and of npm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from .candidates import environment, proxies
from .sandboxes import NPM_PACKAGES, npm_folder

DEBIAN = "bubblewrap gcc haproxy libc6-dev ripgrep socat squid tinyproxy-bin"
"""ripgrep and socat are what one of the sandboxes of npm needs."""


def bring(cache: Path) -> int:
    """They are there, and what else a person may want to install was told. Exit code: 1 when something failed."""
    failed = 0
    uv, npm = shutil.which("uv"), shutil.which("npm")
    for package in sorted({one.package for one in proxies(2) if one.package}):
        folder = environment(cache, package)
        if uv is None:
            print(f"{package}: needs uv", file=sys.stderr)
            failed = 1
        elif not folder.exists():
            for argv in (
                [uv, "venv", "--python", sys.executable, str(folder)],
                [uv, "pip", "install", "--python", str(folder / "bin" / "python"), package],
            ):
                failed |= subprocess.run(argv).returncode
    folder = npm_folder(cache)
    if npm is None:
        print(f"{', '.join(NPM_PACKAGES)}: need npm", file=sys.stderr)
        failed = 1
    elif not folder.exists():
        folder.mkdir(parents=True)
        failed |= subprocess.run([npm, "install", "--no-audit", "--no-fund", *NPM_PACKAGES], cwd=folder).returncode
    print(f"Debian and Ubuntu have the rest: apt-get install {DEBIAN}")
    return 1 if failed else 0
