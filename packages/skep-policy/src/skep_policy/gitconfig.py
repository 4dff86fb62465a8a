"""git's configuration syntax, as far as finding out which files of a work tree git of the host would obey or run.

Nothing here is trusted and nothing is executed: a repository's configuration is what an attacker would have written in
an earlier run. So the parser goes character by character as git's own does (`config.c`): a difference between the two
would be a place to hide a setting in. Where git gives up on a file, so does it.
"""

from __future__ import annotations

from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_FILE = 256 << 10
"""Bytes of a configuration file that is read. Real ones have a few hundred lines."""

_INCLUDES = ("include.path", "includeif.path")
_FILES = ("core.hookspath", "core.attributesfile")

_COMMANDS = (
    *("core.fsmonitor", "core.sshcommand", "core.editor", "core.pager", "core.askpass", "core.gitproxy"),
    *("core.alternaterefscommand", "sequence.editor", "diff.external", "gpg.program", "credential.helper"),
    *("filter.clean", "filter.smudge", "filter.process", "diff.textconv", "diff.command", "merge.driver"),
    *("difftool.cmd", "mergetool.cmd", "difftool.path", "mergetool.path", "remote.uploadpack", "remote.receivepack"),
    *("uploadpack.packobjectshook", "submodule.update", "interactive.difffilter", "web.browser", "hook.command"),
)

# What `git init`, `git clone`, `git branch` and `git commit` leave in a configuration by themselves. It runs nothing.
_HARMLESS = (
    *("core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase"),
    *("core.precomposeunicode", "core.symlinks", "user.name", "user.email", "remote.fetch", "remote.url"),
    *("branch.remote", "branch.merge", "branch.rebase", "submodule.active", "submodule.url", "init.defaultbranch"),
    *("extensions.objectformat", "extensions.refstorage", "extensions.partialclone", "remote.promisor"),
    *("remote.partialclonefilter", "remote.tagopt"),
)
_URLS = ("remote.url", "submodule.url")

_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_SPACE = frozenset(" \t\r")
_SPACED = str.maketrans("\t\r", "  ")


class Setting(Value):
    """`name` is `section.key` in lower case, without the subsection."""

    name: str
    subsection: str
    value: str


class Configuration(Value):
    """The settings of a file in order, and whether git would read it to its end."""

    settings: tuple[Setting, ...]
    whole: bool

    def includes(self) -> list[str]:
        """The files it includes, as written; conditions are taken as met."""
        return self._paths(_INCLUDES)

    def named_files(self) -> list[str]:
        """The files and folders it tells git to obey, as written."""
        return self._paths(_FILES)

    def _paths(self, names: Iterable[str]) -> list[str]:
        """Values of these settings. Below 2.45 git reads a tab outside quotes as a space; both readings are here."""
        found = [setting.value for setting in self.settings if setting.name in names and setting.value]
        return [*found, *(value.translate(_SPACED) for value in found if value.translate(_SPACED) != value)]

    def commands(self) -> list[str]:
        """The shell commands it tells git to run."""
        return [
            setting.value.removeprefix("!")
            for setting in self.settings
            if setting.name in _COMMANDS or (setting.name.startswith("alias.") and setting.value.startswith("!"))
        ]

    def last(self, name: str) -> str | None:
        """The last value of a setting, None when it is not set."""
        return next((setting.value for setting in reversed(self.settings) if setting.name == name), None)

    def is_harmless(self) -> bool:
        """True when it holds nothing but what git writes by itself and no address that is a command."""
        return self.whole and all(
            setting.name in _HARMLESS and not (setting.name in _URLS and _is_odd_url(setting.value))
            for setting in self.settings
        )

    def is_harmless_below(self, folder: str, git_dir: str) -> bool:
        """The same for a git folder of a submodule, whose work tree may be below a folder."""
        import posixpath

        rest = Configuration(tuple(item for item in self.settings if item.name != "core.worktree"), self.whole)
        places = [
            posixpath.normpath(f"{git_dir}/{item.value}") for item in self.settings if item.name == "core.worktree"
        ]
        return rest.is_harmless() and all(
            place.startswith(f"{folder.rstrip('/')}/") and ".git" not in place.split("/") for place in places
        )


def parse(text: str) -> Configuration:
    """The configuration a text means to git. Never raises."""
    reader = _Reader(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    settings = list(reader.settings())
    return Configuration(tuple(settings), reader.whole)


def _is_odd_url(url: str) -> bool:
    """`ext::sh -c ...` runs, and what begins with a hyphen is an option to something."""
    return url.startswith("-") or "::" in url


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.whole = True

    def settings(self) -> Iterator[Setting]:
        section = subsection = ""
        while char := self._next():
            if char in _SPACE or char == "\n":
                continue
            if char in "#;":
                self._to_line_end()
                continue
            if char == "[":
                header = self._header()
                if header is None:
                    break
                section, subsection = header
                continue
            name = self._name(char)
            value = self._value() if name else None
            if name is None or value is None:
                break
            yield Setting(f"{section}.{name}", subsection, value)
        else:
            return
        self.whole = False

    def _header(self) -> tuple[str, str] | None:
        name = ""
        while char := self._next():
            if char == "]":
                section, _, subsection = name.lower().partition(".")
                return section, subsection
            if char in _SPACE:
                subsection = self._subsection()
                return None if subsection is None else (name.lower(), subsection)
            if char not in _KEY and char != ".":
                return None
            name += char
        return None

    def _subsection(self) -> str | None:
        char = self._next()
        while char and char in _SPACE:
            char = self._next()
        if char != '"':
            return None
        found = ""
        while char := self._next():
            if char == '"':
                return found if self._next() == "]" else None
            if char == "\\":
                char = self._next()
            if char in ("", "\n"):
                return None
            found += char
        return None

    def _name(self, first: str) -> str | None:
        if not (first.isascii() and first.isalpha()):
            return None
        found = first
        while self.at < len(self.text) and self.text[self.at] in _KEY:
            found += self._next()
        return found.lower()

    def _value(self) -> str | None:
        """The value after a name, "true" without one."""
        char = self._next()
        while char and char in " \t":
            char = self._next()
        if char in ("", "\n"):
            return "true"
        return self._text() if char == "=" else None

    def _text(self) -> str | None:
        found = ""
        trimmed = 0
        quoted = False
        while char := self._next():
            if char == "\n":
                return None if quoted else found[:trimmed]
            if not quoted and char in "#;":
                self._to_line_end()
                return found[:trimmed]
            if not quoted and char in _SPACE:
                found += char if found else ""
                continue
            if char == '"':
                quoted = not quoted
                trimmed = len(found)
                continue
            if char == "\\":
                char = self._next()
                if char == "\n":
                    continue
                if char not in ('"', "\\", "n", "t", "b"):
                    return None
                char = {"n": "\n", "t": "\t", "b": "\b"}.get(char, char)
            found += char
            trimmed = len(found)
        return None if quoted else found[:trimmed]

    def _to_line_end(self) -> None:
        newline = self.text.find("\n", self.at)
        self.at = len(self.text) if newline < 0 else newline + 1

    def _next(self) -> str:
        """The next character, empty at the end."""
        self.at += 1
        return self.text[self.at - 1 : self.at]
