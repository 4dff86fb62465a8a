"""The README's blocks do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from skep_proxy.config import parse_file

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
        "& pid=$!; for i in {1..200}; do (: > /dev/tcp/127.0.0.1/$PORT) 2>/dev/null && break; sleep 0.1; done\n",
        1,
    )
    port = str(20000 + os.getpid() % 10000)
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
