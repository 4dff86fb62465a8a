"""What can be read with `read = "minimal"`: the system, the toolchain on PATH, and what roots and grants name."""

from __future__ import annotations

from .boundary import Access, PathRule, below
from .layers import BUILT_IN
from .scope import Scope

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix/store", "/run/current-system", "/gnu/store", "/var/lib/dpkg", "/var/cache/fontconfig", "/sys"),
    *("/System", "/Library", "/private/etc", "/private/var/db", "/Applications", "/opt/homebrew"),
)

_CONFIGURATION = ("~/.gitconfig", "~/.config/git")
"""Without these git does not know who commits."""


def reads(scope: Scope) -> list[PathRule]:
    """The readable paths, parents first; an absent one is left out."""
    found: dict[str, PathRule] = {}

    def add(path: str, reason: str, source: str = BUILT_IN) -> None:
        place = scope.tree.place(path)
        if place.kind != "absent" and place.path != "/":
            found.setdefault(place.path, PathRule(place.path, Access.READ, place.kind, reason, source))

    for path in _SYSTEM:
        add(path, "the system")
    for folder in scope.facts.environ.get("PATH", "").split(":"):
        if folder.startswith("/"):
            add(folder, "on PATH")
            for path in _prefix(folder, scope):
                add(path, "the toolchain on PATH")
    for path in _CONFIGURATION:
        add(scope.facts.home + path[1:], "git's configuration")
    for root in scope.roots():
        add(root.path, root.reason, root.source)
    for grant in scope.grants:
        add(grant.place.path, "granted", grant.entry.source)
    return [found[path] for path in sorted(found)]


def _prefix(folder: str, scope: Scope) -> list[str]:
    """What programs of a `bin` folder need beside it: the installation it belongs to, never the home folder itself."""
    place = scope.tree.place(folder).path
    parent, _, name = place.rpartition("/")
    if name not in ("bin", "sbin") or not parent or below(scope.home, parent):
        return []
    if parent == scope.home + "/.local":  # an installation, and the keyrings beside it
        return [f"{parent}/lib", f"{parent}/share/uv", f"{parent}/share/pipx", f"{parent}/pipx"]
    return [parent]
