"""After a launch: what has appeared at any depth of the workspace that the host would run or obey by itself.

The boundary lists what could appear at known places (`watched`). New repositories and editor folders deeper down are
found by the walk that found the old ones before the launch, and what was known then is left out.

A new repository is the most dangerous thing a worker can leave: git of the host runs what its configuration says as
soon as a shell prompt, an editor or the repository around it asks for its status. One that holds nothing but what
`git init` and `git clone` write is reported; any other is to be moved away.
"""

from __future__ import annotations

from .boundary import Boundary, Watched
from .builtin import project_entries
from .gitconfig import MAX_FILE, parse
from .paths import Tree
from .patterns import MAX_FOLDERS, survey

_POINTERS = ("commondir", "config.worktree", "gitdir", "modules", "worktrees", "objects/info/alternates", "remotes")
"""What leads git elsewhere; a repository that was made a moment ago has none of it."""


def appeared(boundary: Boundary) -> tuple[Watched, ...]:
    """What was not there when the boundary was made, sorted. Nothing when the workspace is a run's copy: nobody
    works in it.
    """
    if boundary.workspace in boundary.mapped:
        return ()
    tree = Tree()
    reasons = project_entries()
    known = set(boundary.known)
    seen = survey(boundary.workspace, frozenset(reasons) | {".git"}, tree, limit=MAX_FOLDERS)
    found: list[Watched] = []
    for path in seen.paths():
        if path in known:
            continue
        name = path.rpartition("/")[2]
        if name == ".git":
            found.append(_repository(path, tree))
        elif name in reasons:
            found.append(Watched(path, reasons[name]))
        elif not _is_harmless(path, tree):
            found.append(Watched(f"{path}/config", "a bare repository that was not there, and its configuration", True))
    return tuple(sorted(found))


def _repository(path: str, tree: Tree) -> Watched:
    if tree.is_folder(path) and _is_harmless(path, tree):
        return Watched(path, "a repository that was not there")
    return Watched(path, "a repository that was not there; git of the host would run or follow what it says", True)


def _is_harmless(git_dir: str, tree: Tree) -> bool:
    """Is there nothing in a git folder but what git puts there by itself?"""
    if any(tree.exists(f"{git_dir}/{name}") for name in _POINTERS):
        return False
    hooks = f"{git_dir}/hooks"
    if tree.exists(hooks) and not tree.is_folder(hooks):
        return False
    if any(not name.endswith(".sample") for name in tree.names(hooks)):
        return False
    config = f"{git_dir}/config"
    text = tree.read(config, MAX_FILE)
    return parse(text).is_harmless() if text is not None else not tree.exists(config)
