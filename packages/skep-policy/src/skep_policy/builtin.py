"""The built-in sets, read from their data files.

The files are TOML of the plainest kind (one `"key" = "value"` a line below a table header), so that ten lines here do
what the TOML parser would take 20 times as long for on every start; a test holds the two to the same answer.
"""

from __future__ import annotations

import os

from .facts import Facts


def read_table(name: str, table: str) -> dict[str, str]:
    """One table of a data file of this package."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        text = file.read().partition(f"\n[{table}]\n")[2].partition("\n[")[0]
    pairs = [line.partition(" = ") for line in text.split("\n") if line and line[0] != "#"]
    return {key.strip('"'): value.strip('"') for key, _, value in pairs}


def hidden_entries(facts: Facts) -> dict[str, dict[str, str]]:
    """Folder -> path below it -> reason, of every built-in hidden path on this machine, whether it exists or not."""
    home = facts.home.rstrip("/")
    found: dict[str, dict[str, str]] = {folder.rstrip("/"): {} for folder in (home, *facts.other_homes)}
    bases = {
        ".config/": facts.xdg("CONFIG").rstrip("/"),
        ".local/share/": facts.xdg("DATA").rstrip("/"),
        ".local/state/": facts.xdg("STATE").rstrip("/"),
        ".cache/": facts.xdg("CACHE").rstrip("/"),
    }
    moved = {prefix: folder for prefix, folder in bases.items() if folder != f"{home}/{prefix}".rstrip("/")}
    homes = list(found.values())
    for entry, reason in read_table("hidden.toml", "hidden").items():
        if not entry.startswith("~/"):
            found.setdefault("", {})[entry[1:]] = reason
            continue
        name = entry[2:]
        for entries in homes:
            entries[name] = reason
        for prefix, folder in moved.items():
            if name.startswith(prefix):
                found.setdefault(folder, {})[name[len(prefix) :]] = reason
    for variable, reason in read_table("hidden.toml", "environment").items():
        for value in facts.environ.get(variable, "").split(":"):
            if value.startswith("/") and value.rstrip("/"):
                found.setdefault("", {}).setdefault(value.strip("/"), f"{reason}, by {variable}")
    return found


def project_entries() -> dict[str, str]:
    """Name -> reason of what the host runs by itself in a project."""
    return read_table("protected.toml", "project")


def home_entries() -> dict[str, str]:
    """Path below the home folder -> reason of what the host runs by itself for a user."""
    return read_table("protected.toml", "home")
