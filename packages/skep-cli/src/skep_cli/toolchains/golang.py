"""go, as `go env` tells outside of any module."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from skep_policy.errors import PolicyError

from .found import Found
from .probe import Host


def read(host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    """The module proxies and the checksum database of go. Raises PolicyError."""
    go = host.find("go")
    assert go is not None
    # No other toolchain is fetched to answer, and no workspace found.
    env = {"GOTOOLCHAIN": "local", "GOWORK": "off", "GO111MODULE": "on"}
    text = host.ask([go, "env", "-json", "GOPROXY", "GOSUMDB", "GOENV"], env=env)
    try:
        answer = json.loads(text)
        proxy, database = str(answer.get("GOPROXY", "")), str(answer.get("GOSUMDB", ""))
        host.vouch(*(path for path in [str(answer.get("GOENV", ""))] if path.startswith("/")))
    except (ValueError, AttributeError):
        raise PolicyError(f"go does not say how it is configured: {text[:80]!r}") from None
    handed_on = {
        variable: host.environ[name] for name, variable in settings.get("go", {}).items() if name in host.environ
    }
    return [Found((*proxies(proxy), *databases(database)), handed_on)]


def proxies(text: str) -> list[str]:
    """The URLs of a GOPROXY; "direct" and "off" are none."""
    return [entry.strip() for entry in re.split(r"[,|]", text) if "://" in entry]


def databases(text: str) -> list[str]:
    """The URL of a GOSUMDB: a host, which a key may follow, and a URL where it stands elsewhere."""
    words = text.split()
    if not words or words[0] == "off":
        return []
    host = words[0].partition("+")[0]
    return [words[1] if len(words) > 1 else host if "://" in host else f"https://{host}"]
