"""pip and uv, which share what they ask by default."""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec
from skep_policy.errors import PolicyError

from .found import Found, destination
from .probe import Host

_ASK = """
import glob, os, runpy, sys, sysconfig
try:
    import pip
except ImportError:
    import ensurepip
    folders = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"), sysconfig.get_config_var("WHEEL_PKG_DIR")]
    found = [path for folder in folders if folder for path in glob.glob(os.path.join(folder, "pip-*.whl"))]
    sys.path[:0] = found[:1]
from pip._internal.models.index import PyPI
print(PyPI.simple_url, PyPI.file_storage_domain)
sys.argv = ["pip", "--disable-pip-version-check", "config", "list"]
runpy.run_module("pip", run_name="__main__")
"""
"""What a Python's pip knows: its default index and the host of that one's files, then its configuration. `-I` keeps the
environment and the current folder out; the pip a Python brings for new environments will do as well."""

_LINE = re.compile(r"^([\w:-]+)\.([\w-]+)=(.+)$")
_SECTIONS = ("global", "install", ":env:")
"""Of `pip install`, the later beats the earlier (pip, "Configuration", precedence)."""


class Pip(msgspec.Struct, frozen=True):
    """`default` is the index built in, `files` the host its files come from."""

    default: str
    files: str
    settings: Mapping[str, str]


def read(host: Host, settings: Mapping[str, Mapping[str, str]]) -> list[Found]:
    """The indexes of pip and uv, each its own; one that only either is configured for holds for both. Raises
    PolicyError.
    """
    pip = ask_pip(host)
    uv = list(uv_tables(host))
    uv_urls = list(uv_indexes(host.environ, uv))
    pip_files = tuple(pip_config_files(host))
    host.vouch(*pip_files, *system_files(host))

    pip_index = pip.settings.get("index-url")
    uv_index = next((url for url, default in uv_urls if default), None)
    shared = uv_index or pip_index
    extras = [url for url, default in uv_urls if not default]
    pip_env = {
        variable: " ".join(pip.settings[key].split()) if "url" in key or "links" in key else pip.settings[key]
        for key, variable in settings.get("pip", {}).items()
        if key in pip.settings
    }
    if pip_index is None and uv_index is not None:
        pip_env["PIP_INDEX_URL"] = uv_index
    uv_env = uv_variables(host.environ, uv, settings.get("uv", {}))
    if shared is not None:
        uv_env["UV_DEFAULT_INDEX"] = shared

    used = [pip_index or shared or pip.default, shared or pip.default, *extras]
    used += pip.settings.get("extra-index-url", "").split() + pip.settings.get("find-links", "").split()
    used += _words(host.environ.get("UV_FIND_LINKS", ""))
    built_in = destination(pip.default, source="pip")
    if any(built_in == destination(url, source="the index of Python") for url in used):
        used.append(f"https://{pip.files}/")
    return [
        Found(tuple(dict.fromkeys(used)), pip_env, pip_files),
        Found((), uv_env, tuple(uv_config_files(host))),
    ]


def ask_pip(host: Host) -> Pip:
    """What the first Python with a pip says, our own and the one it was made from as the last. Raises PolicyError."""
    problem = PolicyError("no Python was found whose pip could be asked for its index; install pip")
    ours = [sys.executable, getattr(sys, "_base_executable", "")]
    theirs = [host.find("python3"), host.find("python")]
    for python in dict.fromkeys([*theirs, *(path for path in ours if path and not host.inside(path))]):
        if python is None:
            continue
        try:
            return parse_pip(host.ask([python, "-I", "-c", _ASK]))
        except PolicyError as error:
            problem = error
    raise problem


def parse_pip(text: str) -> Pip:
    """The answer of `_ASK`. Raises PolicyError."""
    first, _, rest = text.partition("\n")
    default, _, files = first.partition(" ")
    if "://" not in default or not files:
        raise PolicyError(f"pip does not say what it asks by default: {first!r}")
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for line in rest.splitlines():
        if (match := _LINE.match(line)) and match[1] in found:
            try:
                found[match[1]][match[2]] = str(ast.literal_eval(match[3]))
            except (SyntaxError, ValueError):
                continue
    return Pip(default, files.strip(), found["global"] | found["install"] | found[":env:"])


def pip_config_files(host: Host) -> Iterator[str]:
    """The files of the user's own pip configuration (pip, "Configuration", location)."""
    yield os.path.join(host.facts.xdg("CONFIG"), "pip", "pip.conf")
    yield host.home(".pip/pip.conf")
    yield host.home("Library/Application Support/pip/pip.conf")
    if (named := host.environ.get("PIP_CONFIG_FILE", "")).startswith("/") and named != os.devnull:
        yield named


def system_files(host: Host) -> Iterator[str]:
    """What else decides: the system's configuration, and which Python a version manager takes."""
    folders = host.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    yield from (os.path.join(folder, "pip/pip.conf") for folder in folders.split(":") if folder.startswith("/"))
    yield "/etc/pip.conf"
    if (root := host.environ.get("PYENV_ROOT", "")).startswith("/"):
        yield os.path.join(root, "version")


def uv_config_files(host: Host) -> Iterator[str]:
    """The file that uv would read for the user (uv, "Configuration files")."""
    named = host.environ.get("UV_CONFIG_FILE", "")
    yield named if named.startswith("/") else os.path.join(host.facts.xdg("CONFIG"), "uv", "uv.toml")


def uv_tables(host: Host) -> Iterator[Mapping[str, Any]]:
    """uv's configuration, the user's before the system's. Raises PolicyError for a file that is none."""
    paths = list(uv_config_files(host))
    if not host.environ.get("UV_CONFIG_FILE"):
        folders = host.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
        paths += [os.path.join(folder, "uv/uv.toml") for folder in folders.split(":") if folder.startswith("/")]
        paths.append("/etc/uv/uv.toml")
    for path in paths:
        if (text := host.read(path)) is not None:
            try:
                yield tomllib.loads(text)
            except tomllib.TOMLDecodeError as error:
                raise PolicyError(f"not TOML: {error}", source=path) from None


def uv_indexes(environ: Mapping[str, str], tables: list[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
    """(URL, is it the default) of every index uv is told of: environment, then the files, stronger first."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        yield from ((url, True) for url in _words(environ.get(name, "")))
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL"):
        yield from ((url, False) for url in _words(environ.get(name, "")))
    for table in tables:
        for entry in map(_table, _list(table.get("index"))):
            if isinstance(url := entry.get("url"), str):
                yield url, entry.get("default") is True
        for section in (table, _table(table.get("pip"))):
            if isinstance(url := section.get("index-url"), str):
                yield url, True
            for key in ("extra-index-url", "find-links"):
                yield from ((url, False) for url in _list(section.get(key)) if isinstance(url, str))


def uv_variables(
    environ: Mapping[str, str], tables: list[Mapping[str, Any]], settings: Mapping[str, str]
) -> dict[str, str]:
    """How uv inside is told what its configuration says; the default index is the caller's to add."""
    env: dict[str, str] = {}
    for table in reversed(tables):
        extras = [
            f"{name}={url}" if isinstance(name := entry.get("name"), str) else url
            for entry in map(_table, _list(table.get("index")))
            if isinstance(url := entry.get("url"), str) and entry.get("default") is not True
        ]
        extras += [url for url in _list(table.get("extra-index-url")) if isinstance(url, str)]
        if extras:
            env["UV_INDEX"] = " ".join(extras)
        if links := [url for url in _list(table.get("find-links")) if isinstance(url, str)]:
            env["UV_FIND_LINKS"] = ",".join(links)
        for key, variable in settings.items():
            value = table.get(key)
            if isinstance(value, bool):
                env[variable] = "true" if value else "false"
            elif isinstance(value, str):
                env[variable] = value
            elif texts := [item for item in _list(value) if isinstance(item, str)]:
                env[variable] = " ".join(texts)
    for name in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", *settings.values()):
        if name in environ:
            env[name] = environ[name]
    return env


def _words(text: str) -> list[str]:
    """The URLs of a list in a variable of uv; one may have a name before it."""
    return [re.sub(r"^[\w.-]+=(?=\w[\w+.-]*://)", "", word) for word in re.split(r"[\s,]+", text) if word]


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
