"""What the package promises to others: its names, its data, its schema, its weight."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import skep_policy
from skep_policy import Facts, Policy, json_schema
from skep_policy.builtin import hidden_entries, home_entries, project_entries, read_table
from skep_policy.schema import DESCRIPTIONS

SOURCE = Path(skep_policy.__file__).parent

SURFACE = """
Access Boundary Closed Decision Effective Egress EgressEvent Entry Env Explanation Facts Filesystem Finding Launch
Layer Limits MalformedHost Network PathRule Policy PolicyError Report Rule Rules Target TrustStore Verdict Verify
Watched Worker appeared built_in canonical_host check classify explain_host explain_path is_address json_schema
load_policy merge parse_duration parse_policy parse_rule parse_size parse_target replace resolve
"""


def test_the_root_has_these_names_and_no_others() -> None:
    assert sorted(skep_policy.__all__) == sorted(SURFACE.split())
    assert all(getattr(skep_policy, name) is not None for name in skep_policy.__all__)
    assert set(skep_policy.__all__) <= set(dir(skep_policy))


def test_what_the_checker_sees_is_what_is_imported() -> None:
    """The names under TYPE_CHECKING and those of the lazy import are the same, from the same modules."""
    seen: dict[str, str] = {}
    for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            seen |= {alias.name: str(node.module) for alias in node.names}
    homes = skep_policy._HOMES  # pyright: ignore[reportPrivateUsage]
    assert seen == homes and sorted(seen) == sorted(skep_policy.__all__)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = skep_policy.nonsense  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]


HEAVY = frozenset(
    (
        *("asyncio", "argparse", "click", "collections", "dataclasses", "difflib", "email", "enum", "functools"),
        *("hashlib", "http", "idna", "ipaddress", "json", "logging", "msgspec", "pathlib", "re", "shlex", "socket"),
        *("ssl", "subprocess", "threading", "tomllib", "typing", "urllib"),
    )
)


def test_deciding_and_resolving_without_a_file_import_nothing_heavy() -> None:
    """What stands on the path of `skep exec`."""
    work = """
import sys
from skep_policy import Facts, Layer, merge, resolve
from skep_policy.written import Written
effective = merge([Layer("flags", Written({"network.allow": ("*.example.com:22", "10.0.0.0/8")}))])
boundary = resolve(effective, facts=Facts.gather())
assert boundary.rules.decide("a.example.com", 22).allow
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-I", "-c", work], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()


# Data files


@pytest.mark.parametrize("name", ["hidden.toml", "protected.toml"])
def test_the_small_reader_reads_what_the_toml_parser_reads(name: str) -> None:
    data: dict[str, dict[str, str]] = tomllib.loads((SOURCE / name).read_text())
    assert data and all(read_table(name, table) == entries for table, entries in data.items())
    for entries in data.values():
        assert all(reason and not reason.endswith(".") for reason in entries.values())


def test_every_hidden_path_is_absolute_once_the_home_is_known() -> None:
    environ = {"XDG_STATE_HOME": "/state/", "XDG_CONFIG_HOME": "/h/.config", "KUBECONFIG": "/a:b:/c/"}
    facts = Facts("/h", "u", 1, 1, "/", environ, ("/other/",))
    paths = [f"{folder}/{name}" for folder, entries in hidden_entries(facts).items() for name in entries]
    assert len(paths) == len(set(paths)) and all(path.startswith("/") and "//" not in path for path in paths)
    assert {"/h/.ssh", "/state/skep", "/h/.local/state/skep", "/a", "/c", "/etc/shadow", "/other/.ssh"} <= set(paths)
    assert "/b" not in paths


def test_protected_names_are_single_names_and_protected_homes_relative() -> None:
    assert all("/" not in name for name in project_entries())
    assert all(not path.startswith(("/", "~")) for path in home_entries())
    names = set(project_entries())
    assert {".vscode", ".idea", ".envrc", ".mcp.json", ".claude", ".codex", ".cursor", ".husky"} <= names
    # Whoever has two names for one file reads the other as well.
    assert {".devcontainer.json", "mise.toml", ".dir-locals-2.el", ".vimrc", ".yarnrc", "opencode.json"} <= names


# Schema


def keys() -> set[str]:
    found: set[str] = set()
    for table in Policy.__struct_encode_fields__:
        struct: msgspec.Struct = getattr(Policy(), table)
        found |= {table, *(f"{table}.{key}" for key in struct.__struct_encode_fields__)}
    return found


def test_every_key_is_described_and_nothing_else() -> None:
    assert set(DESCRIPTIONS) == keys()


def test_the_schema_describes_every_key_and_allows_no_other() -> None:
    schema = json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    tables = definitions["Policy"]["properties"]
    described = set(tables)
    for table, reference in tables.items():
        definition = definitions[reference["$ref"].rpartition("/")[2]]
        assert definition["additionalProperties"] is False
        described |= {f"{table}.{key}" for key, value in definition["properties"].items() if value["description"]}
    assert described == keys()
    assert definitions["Network"]["properties"]["sni"]["anyOf"][0]["enum"] == ["match", "off"]
    assert msgspec.json.decode(msgspec.json.encode(schema))["title"] == "skep policy"
