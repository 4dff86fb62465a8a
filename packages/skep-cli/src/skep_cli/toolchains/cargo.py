"""cargo, which shows where it turns for a crate: to a proxy that lets nothing through."""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from skep_policy.boundary import below
from skep_policy.errors import PolicyError

from .found import Found, destination
from .probe import Host

_REQUEST = re.compile(r"CONNECT (?P<place>\S+:\d+) HTTP/1|[A-Z]+ (?P<url>https?://\S+) HTTP/1")
_CRATE = {
    "Cargo.toml": '[package]\nname = "asks"\nversion = "0.0.0"\nedition = "2021"\n\n[dependencies]\nserde = "*"\n',
    "src/lib.rs": "",
}


def read(host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    """The registries of cargo and the hosts of their files. Raises PolicyError."""
    cargo = host.find("cargo")
    assert cargo is not None
    home = host.environ.get("CARGO_HOME", "")
    home = home if home.startswith("/") else host.home(".cargo")
    path = next((path for name in ("config.toml", "config") if os.path.exists(path := f"{home}/{name}")), None)
    host.vouch(*(f"{home}/{name}" for name in ("config.toml", "config")))
    host.seen.add(os.path.join(host.environ.get("RUSTUP_HOME") or host.home(".rustup"), "settings.toml"))
    config = parse(host.read(path) or "", path) if path else {}
    _refuse_unseen(host, config, path)
    urls = [url for url in (asked(host, cargo, path, sources(config)), *indexes(config)) if url]
    files = [url for index in urls if (url := files_of(host, home, index))]
    env = {
        variable: str(value).lower() if isinstance(value, bool) else str(value)
        for key, variable in settings.get("cargo", {}).items()
        if isinstance(value := _dig(config, key), (str, int, bool))
    }
    for name, table in _table(config.get("registries")).items():
        if isinstance(index := _table(table).get("index"), str):
            env[f"CARGO_REGISTRIES_{name.upper().replace('-', '_')}_INDEX"] = index
    return [Found(tuple(dict.fromkeys([*urls, *files])), env)]


def asked(host: Host, cargo: str, config: str | None, sources: Sequence[str]) -> str | None:
    """The URL that cargo tries for any crate, replaced sources applied; None when it needs no network. `sources` are
    those the configuration names: of an https URL a proxy sees host and port only.

    Its only way out is a proxy of ours, so nothing else happens.
    """
    with host.turning_away() as (port, requests), host.workbench(_CRATE) as folder:
        proxy = f"http://127.0.0.1:{port}"
        env = {
            "CARGO_HOME": os.path.join(folder, "home"),
            "CARGO_HTTP_PROXY": proxy,
            "CARGO_NET_RETRY": "0",
            "CARGO_NET_OFFLINE": "false",
            "CARGO_TERM_COLOR": "never",
            "RUSTUP_AUTO_INSTALL": "0",
            "NO_PROXY": "",
            "no_proxy": "",
        }
        told = ["--config", config, "--config", f'http.proxy="{proxy}"'] if config else []
        said = host.ask([cargo, *told, "fetch"], env=env, folder=folder, may_fail=True)
    for request in filter(None, map(_REQUEST.match, requests)):
        if request["url"]:
            return request["url"]
        url = f"https://{request['place']}/"
        place = destination(url, source="cargo")
        return next((source for source in sources if destination(source, source="cargo") == place), url)
    if "error: " in said and "no matching package" not in said:
        lines = [line.strip() for line in said.splitlines() if line.startswith("error: ")]
        raise PolicyError(f"cargo does not say how it is configured: {lines[0].removeprefix('error: ')}")
    return None


def files_of(host: Host, home: str, index: str) -> str | None:
    """Where the files of a sparse index are, by its config.json: cargo's own copy, else the index itself."""
    target = destination(index, source="cargo")
    if target is None:
        return None
    for path in glob.glob(f"{glob.escape(home)}/registry/index/{glob.escape(target[0])}-*/config.json"):
        if url := dl_of((host.read(path) or "").encode()):
            return url
    base = index.removeprefix("sparse+").removeprefix("registry+").removesuffix("config.json").rstrip("/")
    return dl_of(host.fetch(f"{base}/config.json") or b"")


def dl_of(data: bytes) -> str | None:
    """The `dl` of a registry's config.json (cargo, "Registry index format")."""
    try:
        decoded = json.loads(data)
    except ValueError:
        return None
    dl = _table(decoded).get("dl")
    return dl.partition("{")[0] if isinstance(dl, str) else None


def parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"not TOML: {error}", source=path) from None


def indexes(config: Mapping[str, Any]) -> list[str]:
    """The registries that have a name of their own."""
    tables = [_table(table) for table in _table(config.get("registries")).values()]
    return [index for table in tables if isinstance(index := table.get("index"), str)]


def sources(config: Mapping[str, Any]) -> list[str]:
    """The registries that may stand in for another."""
    tables = [_table(table) for table in _table(config.get("source")).values()]
    return [url for table in tables if isinstance(url := table.get("registry"), str)]


def _refuse_unseen(host: Host, config: Mapping[str, Any], path: str | None) -> None:
    """Raise PolicyError where sources are replaced and cargo inside would not know: it finds the file by walking up
    from the project, and there is no variable for sources.
    """
    replaced = any("replace-with" in _table(table) for table in _table(config.get("source")).values())
    if path is None or not replaced:
        return
    above = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    seen = os.path.basename(os.path.dirname(path)) == ".cargo" and below(os.path.realpath(host.facts.cwd), above)
    if not seen:
        raise PolicyError(
            f"cargo replaces its sources in {path}, which it finds inside only for projects below {above}; "
            "put the [source] tables into the project's .cargo/config.toml and --allow the registry",
        )


def _dig(config: Mapping[str, Any], key: str) -> object:
    value: object = config
    for part in key.split("."):
        value = _table(value).get(part)
    return value


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
