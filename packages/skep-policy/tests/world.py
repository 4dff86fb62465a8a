"""A small file system for a test: a home, a repository in it, and what stands beside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skep_policy import Access, Boundary, Effective, Facts, Layer, merge, parse_policy, resolve


class Link(str):
    """The text of a symbolic link."""

    __slots__ = ()


Tree = Mapping[str, "str | Link | None"]
"""Path below the root -> content of a file, a link, or None for a folder."""


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.repo = self.home / "repo"
        self.repo.mkdir(parents=True)

    def add(self, tree: Tree) -> None:
        for name, content in tree.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            elif isinstance(content, Link):
                path.symlink_to(content)
            else:
                path.write_text(content)

    def facts(self, **environ: str) -> Facts:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self.home)} | environ
        return Facts(str(self.home), "someone", os.getuid(), os.getgid(), str(self.repo), env)

    def effective(self, policy: str = "", *, source: str = "flags", base: Path | None = None) -> Effective:
        return merge([Layer(source, parse_policy(policy, source=source), base=str(base or self.repo))])

    def resolve(self, policy: str = "", *, environ: Mapping[str, str] | None = None, **how: Any) -> Boundary:
        facts = how.pop("facts", None) or self.facts(**(environ or {}))
        return resolve(self.effective(policy), facts=facts, **how)

    def access(self, boundary: Boundary, name: str) -> Access:
        """The access at a path below the root, or at an absolute one."""
        return boundary.access_to(str(self.root / name))

    def watched(self, boundary: Boundary) -> set[str]:
        return {os.path.relpath(watched.path, self.root) for watched in boundary.watched}
