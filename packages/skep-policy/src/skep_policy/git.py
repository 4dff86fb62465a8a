"""What of a git repository the worker may not write, and what has to be looked at afterwards.

git of the host runs what a repository's configuration and hooks say, and obeys the pointers that join work trees,
submodules and main repositories. So, for every repository whose work tree a writable root covers:

- without `git = true`, its `.git` is read-only, whatever it is: a folder, a file that points to one, or a link;
- with it, objects, references, index and logs are writable, and what git runs or follows is not: configuration,
  hooks, attributes, pointers, alternates, and the state of an unfinished rebase, whose to-do list may hold commands;
- files of the work tree that the configuration includes or runs are read-only either way;
- what of these is absent is watched.

A repository that lies outside of the roots (that of a linked worktree, of a submodule, of the folder above) is opened
only for `git = true`, and only when it points back to the work tree: a `.git` file is text that an earlier worker may
have written, the answer on the other side is not. Of a linked worktree's main repository only objects, references and
logs become writable, never the whole of it.
"""

from __future__ import annotations

from .boundary import Access, PathRule, Watched, below
from .errors import PolicyError
from .gitconfig import MAX_FILE, parse
from .paths import Place, Tree, expand
from .value import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_POINTER = 4096
"""Bytes of a `.git`, `gitdir` or `commondir` file: one path."""

MAX_INCLUDES = 20
"""Configuration files followed from one; git itself stops at 10 levels."""

MAX_MODULES = 2000
"""Folders looked into below `modules`, whose names may have slashes."""

OPENED = "git is allowed here"
"""The reason of a root that is a repository's."""

_READ_ONLY = "git of the host runs what its configuration and hooks say"

# Of a git folder that is otherwise writable. The value says why, for people.
GUARDED = {
    "config": "git runs commands of its configuration",
    "config.worktree": "git runs commands of its configuration",
    "hooks": "git runs hooks",
    "info/attributes": "git runs the filters its attributes name",
    "info/grafts": "git takes history from it",
    "commondir": "git takes its configuration from where this points",
    "gitdir": "git takes a work tree from where this points",
    "objects/info/alternates": "git takes objects from where this points",
    "objects/info/http-alternates": "git takes objects from where this points",
    "remotes": "git takes remotes from it",
    "branches": "git takes remotes from it",
    "rebase-merge": "git runs the commands of an unfinished rebase",
    "rebase-apply": "git goes on with an unfinished rebase",
    "sequencer": "git goes on with an unfinished sequence",
}

# Of the folder of one linked worktree below `worktrees`.
_GUARDED_WORKTREE = ("commondir", "gitdir", "config.worktree", "rebase-merge", "rebase-apply", "sequencer")

# Of the main repository of a linked worktree: what a commit writes there. The rest of it stays read-only.
_SHARED = ("objects", "refs", "logs", "lfs", "rr-cache")


class Guard(Record):
    """What one or more repositories add to a boundary."""

    roots: list[PathRule] = []
    protects: list[PathRule] = []
    watched: list[Watched] = []
    links: dict[str, str] = {}


class Guarding:
    """The repositories of one resolution. `covered` says whether a writable root covers a path; `source` is the layer
    that said `git`.
    """

    def __init__(
        self, tree: Tree, *, allow: bool, source: str, home: str, uid: int, covered: Callable[[str], bool]
    ) -> None:
        self.tree = tree
        self.allow = allow
        self.source = source
        self.home = home
        self.uid = uid
        self.covered = covered
        self.guard = Guard()

    def top(self, folder: str) -> None:
        """Guard the repository of a writable root's own folder, or watch for one to appear."""
        dot = self.tree.place(folder + "/.git")
        if dot.kind == "absent":
            self._watch(dot.path, "a repository that was not there; git of the host would obey it", not self.allow)
        self.work_tree(folder)

    def work_tree(self, folder: str, *, open_outside: bool = True) -> bool:
        """Guard the repository of a work tree (a path without links), and say whether there is one. With `open_outside`
        a repository outside of the roots is opened when git is allowed.
        """
        dot = self.tree.place(folder + "/.git")
        self._note_links(dot)
        if dot.kind == "absent":
            return False
        git_dir = dot if dot.kind == "dir" else self._pointer(dot, folder)
        if dot.kind == "file" or not self.allow:
            self._protect(dot, _READ_ONLY)
        if git_dir is None or git_dir.kind != "dir":
            return True
        common = self._common(git_dir)
        if not self.allow:
            self._protect(git_dir, _READ_ONLY)
            self._protect(common, _READ_ONLY)
        else:
            if open_outside:
                self._open(dot, git_dir, common, folder)
            self._guard_git_dir(git_dir.path)
            if common.path != git_dir.path:
                self._guard_git_dir(common.path)
        self._follow_configuration(folder, git_dir.path, common.path)
        return True

    def above(self, folder: str) -> None:
        """Open the repository a workspace is a part of, when git is allowed: the nearest one up the folders, if
        ours.
        """
        while folder != "/":
            folder = folder.rpartition("/")[0] or "/"
            dot = self.tree.place(folder.rstrip("/") + "/.git")
            if dot.kind != "absent":
                if self.tree.owner(dot.path) == self.uid:
                    self.work_tree(folder)
                return

    def bare(self, folder: str) -> None:
        """Guard a folder of the workspace that is a git folder itself."""
        self._guard_git_dir(folder)
        self._follow_configuration(folder, folder, folder)

    def user_configuration(self, paths: list[str], folder: str) -> None:
        """Protect what the user's own configuration takes from a work tree (a relative `core.hooksPath`)."""
        for path in paths:
            if (config := self._named(path, "/")) is not None:
                self._follow(config, [], folder)

    def _pointer(self, file: Place, folder: str) -> Place | None:
        """The git folder a `.git` file points to."""
        text = self._text(file.path)
        if not text.startswith("gitdir:"):
            return None
        return self.tree.place(expand_from(text.removeprefix("gitdir:").strip("\t "), folder, self.home))

    def _common(self, git_dir: Place) -> Place:
        text = self._text(git_dir.path + "/commondir")
        common = self.tree.place(expand_from(text, git_dir.path, self.home)) if text else git_dir
        return common if common.kind == "dir" else git_dir

    def _open(self, dot: Place, git_dir: Place, common: Place, folder: str) -> None:
        """Make a repository outside of the roots writable as far as a commit needs it."""
        if self.covered(git_dir.path) and self.covered(common.path):
            return
        plain = dot.path == f"{folder.rstrip('/')}/.git" and git_dir.path == dot.path == common.path
        if not plain and not self._points_back(dot, git_dir, common, folder):
            outside = common.path if self.covered(git_dir.path) else git_dir.path
            raise PolicyError(
                f"{dot.path} points to {outside}, which does not point back, so it is not opened; "
                f"`git worktree repair` may mend it, `--write {outside}` opens it",
                source=self.source,
                key="filesystem.git",
            )
        if not self.covered(git_dir.path):
            self._root(git_dir)
        if common.path != git_dir.path:
            for name in _SHARED:
                self._root(self.tree.place(f"{common.path}/{name}"))

    def _points_back(self, dot: Place, git_dir: Place, common: Place, folder: str) -> bool:
        """Does a git folder name this work tree as its own? A linked worktree's says so in `gitdir` and stands where
        its main repository keeps them; a submodule's says so in `core.worktree` and shares with nobody.
        """
        if dot.kind != "file" or self.tree.owner(git_dir.path) != self.uid:
            return False
        if common.path == git_dir.path:
            back, expected = parse(self._text(git_dir.path + "/config", MAX_FILE)).last("core.worktree"), folder
        elif below(git_dir.path, common.path + "/worktrees"):
            back, expected = self._text(git_dir.path + "/gitdir"), dot.path
        else:
            return False
        return bool(back) and self.tree.place(expand_from(back or "", git_dir.path, self.home)).path == expected

    def _guard_git_dir(self, git_dir: str) -> None:
        for name, reason in GUARDED.items():
            self._protect_or_watch(f"{git_dir}/{name}", reason)
        for name in self.tree.names(git_dir + "/worktrees"):
            for guarded in _GUARDED_WORKTREE:
                self._protect_or_watch(f"{git_dir}/worktrees/{name}/{guarded}", GUARDED[guarded])
        for module in self._modules(git_dir + "/modules"):
            for name, reason in GUARDED.items():
                self._protect_or_watch(f"{module}/{name}", reason)

    def _modules(self, folder: str) -> Iterator[str]:
        """The git folders of submodules; a submodule's name may have slashes, and it may have submodules itself."""
        todo = [folder]
        looked = 0
        while todo and looked < MAX_MODULES:
            folder = todo.pop()
            looked += 1
            names = self.tree.names(folder)
            if "HEAD" in names:
                yield folder
                names = ["modules"] if "modules" in names else []
            todo += [place.path for name in names if (place := self.tree.place(f"{folder}/{name}")).kind == "dir"]

    def _follow_configuration(self, folder: str, git_dir: str, common: str) -> None:
        for path in dict.fromkeys((f"{common}/config", f"{git_dir}/config.worktree", f"{git_dir}/config")):
            self._follow(self.tree.place(path), [], folder)
        self._hooks(self.tree.place(f"{common}/hooks"))

    def _hooks(self, hooks: Place) -> None:
        """Protect a folder of hooks and the files its entries link to."""
        self._protect(hooks, GUARDED["hooks"])
        for name in self.tree.names(hooks.path) if hooks.kind == "dir" else []:
            hook = self.tree.place(f"{hooks.path}/{name}")
            if hook.links:
                self._protect(hook, GUARDED["hooks"])

    def _follow(self, config: Place, seen: list[str], folder: str) -> None:
        """Protect what one configuration file makes git obey or run, in files that roots cover."""
        if config.kind != "file" or config.path in seen or len(seen) >= MAX_INCLUDES:
            return
        seen.append(config.path)
        said = parse(self._text(config.path, MAX_FILE))
        for name in said.includes():
            if (place := self._named(name, config.path.rpartition("/")[0])) is not None:
                self._protect_or_watch(place.path, "git's configuration includes it")
                self._follow(place, seen, folder)
        for name in said.named_files():
            place = self._named(name, folder)
            if place is not None and not below(folder, place.path):
                self._protect_or_watch(place.path, "git's configuration names it")
                self._hooks(place)
        for command in said.commands():
            for word in command.replace("'", " ").replace('"', " ").split():
                place = self._named(word, folder)
                if place is not None and place.kind == "file":
                    self._protect(place, "git's configuration runs it")

    def _named(self, text: str, folder: str) -> Place | None:
        """What a word of a configuration leads to, None when it can be no path."""
        try:
            return self.tree.place(expand_from(text, folder, self.home))
        except PolicyError:
            return None

    def _text(self, path: str, limit: int = MAX_POINTER) -> str:
        """The text of a file of git's, without the line end; empty when there is none."""
        place = self.tree.place(path)
        return (self.tree.read(place.path, limit) or "").rstrip("\r\n") if place.kind == "file" else ""

    def _root(self, place: Place) -> None:
        if place.kind != "absent" and not place.blocked:
            self.guard.roots.append(PathRule(place.path, Access.WRITE, place.kind, OPENED, self.source))

    def _protect_or_watch(self, path: str, reason: str) -> None:
        place = self.tree.place(path)
        self._note_links(place)
        if place.kind == "absent":
            self._watch(place.path, reason, True)
        else:
            self._protect(place, reason)

    def _protect(self, place: Place, reason: str) -> None:
        if place.kind != "absent" and self._covered(place.path):
            self.guard.protects.append(PathRule(place.path, Access.READ, place.kind, reason))

    def _watch(self, path: str, reason: str, quarantine: bool) -> None:
        if self._covered(path):
            self.guard.watched.append(Watched(path, reason, quarantine))

    def _note_links(self, place: Place) -> None:
        self.guard.links.update({link: text for link, text in place.links if self._covered(link)})

    def _covered(self, path: str) -> bool:
        return self.covered(path) or any(below(path, root.path) for root in self.guard.roots)


def expand_from(text: str, folder: str, home: str) -> str:
    """A path of git's own files: relative to a folder, or below the home folder."""
    return expand(text.replace("\0", ""), base=folder, home=home)
