"""skep as it goes on a Mac, told from outside that this is one, with a stand-in for sandbox-exec that judges the first
program inside by the profile it was given (`skep_seatbelt.testing`). What it cannot show is that the kernel does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from skep_seatbelt.testing import install

DRIVER = """
import sys
from skep_cli.__main__ import main
from skep_cli.host import Host
platform, sandbox_exec, log, uid, xcode_select = sys.argv[1:6]
del sys.argv[1:6]
main(Host(platform=platform, sandbox_exec=sandbox_exec, log=log, uid=int(uid), xcode_select=xcode_select))
"""

SPEAKING_LOG = """#!/bin/sh
tag=$(printf '%s' "$*" | sed 's/.*CONTAINS "\\([^"]*\\)".*/\\1/')
line() { printf '{"eventMessage":"Sandbox: %s\\\\n%s"}\\n' "$1" "$tag"; }
line 'cc(7) deny(1) file-write-create /Users/u/x'
line 'cc(7) deny(1) mach-lookup com.apple.coreservices.launchservicesd'
line 'cc(7) deny(1) mach-lookup com.example.nobody.knows'
printf '{"eventMessage":"Sandbox: other(8) deny(1) file-read-data /Users/u/y\\\\nskep-other"}\\n'
exec sleep 600
"""


class Machine:
    """A home with a folder `work` to work in. `mode` is how its sandbox-exec behaves."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.home = base / "home"
        self.work = self.home / "work"
        self.temporary = base / "T"
        self.log = "/no/such/log"
        self.xcode_select = "/bin/true"
        for folder in (self.home, self.work, self.temporary):
            folder.mkdir()

    def speaking_log(self) -> None:
        path = self.base / "log"
        path.write_text(SPEAKING_LOG)
        path.chmod(0o755)
        self.log = str(path)

    def argv(self, *words: str, platform: str = "darwin", mode: str = "hold", uid: int = 501) -> list[str]:
        sandbox_exec = install(self.base, mode) if mode != "missing" else str(self.base / "nothing")
        return [sys.executable, "-c", DRIVER, platform, sandbox_exec, self.log, str(uid), self.xcode_select, *words]

    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "API_KEY": "s3cret",
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    def skep(self, *words: str, cwd: Path | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words, **how),
            cwd=cwd or self.work,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def exec(self, script: str, *flags: str, **how: Any) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        """What became of a shell script, and the report."""
        report = self.work / "report.json"
        done = self.skep("exec", "--report", str(report), *flags, "--", "sh", "-c", script, **how)
        return done, json.loads(report.read_text()) if report.exists() and report.stat().st_size else {}

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        done = subprocess.run(
            ["git", *identity, *words], cwd=self.work, env=self.environ(), capture_output=True, text=True, check=True
        )
        return done.stdout
