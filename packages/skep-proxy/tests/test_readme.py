"""The README's blocks do what they say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from skep_policy import Rules
from skep_proxy.arguments import parser
from skep_proxy.config import parse_file

from .conftest import reserved_port

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
ENVIRON = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
ENVIRON["PATH"] = f"{Path(sys.executable).parent}:{ENVIRON['PATH']}"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


SAID = blocks("text")[0]


@pytest.mark.parametrize("code", blocks("python"), ids=["thread", "async"])
def test_library_examples(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRON, timeout=60, check=True
    )
    assert SAID in done.stdout


def test_command_example() -> None:
    script = blocks("sh")[0].replace("pip install skep-proxy\n", "").replace("127.0.0.1:3128", "127.0.0.1:$PORT")
    script = script.replace(
        "&\n",
        "& pid=$!; for i in {1..500}; do (: > /dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done\n",
        1,
    )
    with reserved_port() as port:
        done = subprocess.run(
            ["bash", "-c", f"PORT={port}; {script}\nkill $pid; wait $pid"],
            capture_output=True,
            text=True,
            env=ENVIRON,
            timeout=60,
            check=False,
        )
    assert done.stdout == SAID, done.stderr


def test_configuration_example() -> None:
    settings = parse_file(blocks("toml")[0], source="README.md")
    assert [str(place) for place, _ in settings.listeners] == ["127.0.0.1:3128", "/run/skep/agents.sock"]


def test_service_unit_starts_what_the_command_knows() -> None:
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(blocks("ini")[0])
    service = unit["Service"]
    _, program, *arguments = shlex.split(service["ExecStart"])
    parsed = parser().parse_args(arguments)
    assert program == "skep-proxy" and parsed.config and parsed.json_log
    # What the unit makes is where the file and the flags say.
    assert Path(parsed.json_log).parent == Path("/var/log") / service["LogsDirectory"]
    sockets = [place.path for place, _ in parse_file(blocks("toml")[0], source="README.md").listeners if place.path]
    assert [Path(path).parent for path in sockets] == [Path("/run") / service["RuntimeDirectory"]]
    assert service["Type"] == "notify-reload"  # test_serve_command: READY=1, RELOADING=1, STOPPING=1


def test_flags_of_the_document_are_flags_of_the_command() -> None:
    known = set(re.findall(r"--[a-z-]+", helped("serve")))
    named = {flag for text in re.findall(r"`(--[^`]*)`", README) for flag in re.findall(r"--[a-z-]+", text)}
    assert named and named <= known


def helped(*words: str) -> str:
    argv = [sys.executable, "-m", "skep_proxy", *words, "--help"]
    return subprocess.run(argv, capture_output=True, text=True, env={**ENVIRON, "COLUMNS": "100"}, check=True).stdout


def test_help_teaches_rules_that_are_rules_and_commands_that_parse() -> None:
    text = helped("serve")
    rules = re.findall(r"^  (\S+) {2,}", text.partition("\nrules:\n")[2].partition("\nexamples:")[0], re.MULTILINE)
    assert len(rules) == 6 and len(Rules.build(allow=rules).allow) == 6
    commands = re.findall(r"^  skep-proxy (serve .*)$", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        parsed = parser().parse_args(shlex.split(command))
        Rules.build(allow=parsed.allow)
    assert max(map(len, text.splitlines())) <= 100
    assert "serve --help" in helped()


def test_version_is_that_of_the_package() -> None:
    argv = [sys.executable, "-m", "skep_proxy", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == f"skep-proxy {version('skep-proxy')}\n"


def test_reasons_are_those_of_the_code() -> None:
    from skep_policy import verdict
    from skep_proxy.denial import NOT_RECORDED

    words = {value for name, value in vars(verdict).items() if name.isupper() and isinstance(value, str)}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)) == words - {verdict.ALLOWED} | {NOT_RECORDED}


def test_public_surface() -> None:
    import skep_proxy

    assert skep_proxy.__all__ == [
        *("Limits", "Proxy", "Serving", "Stats", "Upstream", "UpstreamError", "explain_denial", "serve"),
    ]
    for name in skep_proxy.__all__:
        assert getattr(skep_proxy, name) is not None
