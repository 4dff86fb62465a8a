"""git's configuration syntax, as far as finding out which files of a work tree git of the host would obey or run.

Nothing here is trusted and nothing is executed: a repository's configuration is what an attacker would have written in
an earlier run. A line this parser does not understand is skipped; the file itself is protected as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_FILE = 256 << 10
"""Bytes of a configuration file that is read. Real ones have a few hundred lines."""

_INCLUDES = ("include.path", "includeif.path")
_FILES = ("core.hookspath", "core.attributesfile")

_COMMANDS = (
    *("core.fsmonitor", "core.sshcommand", "core.editor", "core.pager", "core.askpass", "core.gitproxy"),
    *("core.alternaterefscommand", "sequence.editor", "diff.external", "gpg.program", "credential.helper"),
    *("filter.clean", "filter.smudge", "filter.process", "diff.textconv", "diff.command", "merge.driver"),
    *("difftool.cmd", "mergetool.cmd", "difftool.path", "mergetool.path", "gpg.ssh.program"),
    *("remote.uploadpack", "remote.receivepack", "uploadpack.packobjectshook", "submodule.update"),
    *("interactive.difffilter", "web.browser"),
)


def entries(text: str) -> Iterator[tuple[str, str]]:
    """(`section.key`, value) of each setting, in lower case and without the subsection, which no name here depends
    on.
    """
    section = ""
    for line in text.replace("\\\n", "").splitlines():
        line = line.strip().removeprefix("\ufeff")
        if line.startswith("["):
            header, _, line = line[1:].partition("]")
            section = header.partition(" ")[0].partition('"')[0].strip().lower()
            line = line.strip()
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        if key.strip().replace("-", "").isalnum():
            yield f"{section}.{key.strip().lower()}", _value(value) if equals else "true"


def includes(text: str) -> list[str]:
    """The files a configuration includes, as written; conditions are taken as met."""
    return [value for key, value in entries(text) if key in _INCLUDES and value]


def named_files(text: str) -> list[str]:
    """The files and folders a configuration tells git to obey, as written."""
    return [value for key, value in entries(text) if key in _FILES and value]


def commands(text: str) -> list[str]:
    """The shell commands a configuration tells git to run."""
    return [
        value.removeprefix("!")
        for key, value in entries(text)
        if value and (key in _COMMANDS or (key.startswith("alias.") and value.startswith("!")))
    ]


def value_of(text: str, name: str) -> str | None:
    """The last value of a setting, None when it is not set."""
    return next((value for key, value in reversed(list(entries(text))) if key == name), None)


def _value(text: str) -> str:
    """A value without its quotes, escapes and trailing comment."""
    found: list[str] = []
    quoted = False
    at = 0
    text = text.strip()
    while at < len(text):
        char = text[at]
        if char == '"':
            quoted = not quoted
        elif char == "\\" and at + 1 < len(text):
            at += 1
            found.append({"n": "\n", "t": "\t", "b": "\b"}.get(text[at], text[at]))
        elif char in "#;" and not quoted:
            break
        else:
            found.append(char)
        at += 1
    return "".join(found).strip()
