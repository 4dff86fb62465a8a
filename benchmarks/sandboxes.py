"""What is started in `start`: skep, what it is made of, and the sandboxes for agents that npm has."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NPM_PACKAGES = ("@anthropic-ai/sandbox-runtime", "@openai/codex")

BWRAP_FLAGS = (
    *("--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    *("--tmpfs", "/tmp", "--cap-drop", "ALL"),
)

SKEP = str(Path(sys.executable).with_name("skep"))

DENY, LIST = "deny all", "domain list"
DOMAIN = "example.com"


@dataclass(frozen=True)
class Start:
    """`argv` runs `true`; `before` are the words before the command, for those that run any command."""

    name: str
    before: Sequence[str] = ()
    command: Sequence[str] = ("true",)

    @property
    def argv(self) -> list[str]:
        return [*self.before, *self.command]


def npm_folder(cache: Path) -> Path:
    return cache / "npm"


def environ(home: Path) -> dict[str, str]:
    """A small environment with a home of its own."""
    return {"HOME": str(home), "PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TERM": "dumb"}


def floors() -> list[Start]:
    """What nothing can be faster than, and what skep is made of."""
    python = os.path.realpath(sys.executable)
    found = [
        Start("`true`", command=(_which("true"),)),
        Start("`python3 -c pass`", command=(sys.executable, "-c", "pass")),
        Start("`python3 -I -S -c pass`", command=(python, "-I", "-S", "-c", "pass")),
    ]
    if bwrap := shutil.which("bwrap"):
        raw = (bwrap, *BWRAP_FLAGS, "--")
        found += [
            Start("bwrap, all namespaces", before=raw),
            Start("bwrap + `python3 -I -S -c pass`", before=raw, command=(python, "-I", "-S", "-c", "pass")),
        ]
    return found


def ours() -> list[Start]:
    return [
        Start(f"skep exec, {DENY}", before=(SKEP, "exec", "--")),
        Start(f"skep exec, {LIST}", before=(SKEP, "exec", "--allow", DOMAIN, "--")),
    ]


def commands() -> list[Start]:
    """Of skep, that start nothing for the user."""
    return [
        Start("skep --help", command=(SKEP, "--help")),
        Start("skep doctor --json", command=(SKEP, "doctor", "--json")),
    ]


def others(cache: Path, folder: Path) -> tuple[list[Start], dict[str, str]]:
    """Those of npm, and why the ones are missing that are. Settings are written to `folder`."""
    found: list[Start] = []
    absent: dict[str, str] = {}
    modules = npm_folder(cache) / "node_modules"
    srt = shutil.which("srt", path=os.pathsep.join([str(modules / ".bin"), os.environ.get("PATH", "")]))
    if srt is None:
        absent["sandbox-runtime"] = "`srt` is not installed"
    else:
        for name, domains in ((DENY, ()), (LIST, (DOMAIN,))):
            settings = folder / f"srt-{len(domains)}.json"
            settings.write_text(json.dumps(_srt_settings(domains)))
            found.append(Start(f"sandbox-runtime, {name}", before=(srt, "-s", str(settings))))
    native = sorted(modules.glob("@openai/codex-*/vendor/*/bin/codex"))
    codex = str(native[0]) if native else shutil.which("codex")
    if codex is None:
        absent["codex sandbox"] = "`codex` is not installed"
    else:
        mode = ("-c", 'sandbox_mode="workspace-write"')
        found.append(Start(f"codex sandbox, {DENY}", before=(codex, "sandbox", *mode, "--")))
    return found, absent


def _srt_settings(domains: Sequence[str]) -> Mapping[str, object]:
    return {
        "network": {"allowedDomains": list(domains), "deniedDomains": []},
        "filesystem": {"denyRead": [], "allowWrite": ["."], "denyWrite": []},
    }


def _which(name: str) -> str:
    return shutil.which(name) or f"/bin/{name}"
