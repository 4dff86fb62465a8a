"""The policy flags: one table, from which click's options and the short parser of `skep exec` are both made."""

from __future__ import annotations

from skep_policy.checks import check
from skep_policy.value import Record, Value
from skep_policy.written import SET, Written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Final, Literal

    Kind = Literal["many", "one", "number", "switch"]

SOURCE: Final = "command line"


MAX_DIGITS = 18
"""Of a number: Python refuses thousands of them, and the kernel has no limit of more."""


class Flag(Value):
    """`field` is the attribute of `Flags` it fills, `key` what says the same in a policy file."""

    name: str
    field: str
    kind: Kind
    metavar: str
    help: str
    key: str = ""


POLICY_FLAGS: Final = (
    Flag("--policy", "policy", "one", "FILE", "A policy file on top of the user's and project's."),
    Flag(
        "--allow",
        "allow",
        "many",
        "DOMAIN",
        "What it may reach: HOST[:PORT], *.DOMAIN, *, ...",
        "network.allow",
    ),
    Flag("--deny", "deny", "many", "DOMAIN", "What it may never reach; beats every --allow.", "network.deny"),
    Flag("--write", "write", "many", "PATH", "One more folder or file it may write.", "filesystem.write"),
    Flag(
        "--protect", "protect", "many", "PATH", "Read-only although a writable folder holds it.", "filesystem.protect"
    ),
    Flag("--hide", "hide", "many", "PATH", "Neither readable nor writable.", "filesystem.hide"),
    Flag(
        "--grant",
        "grant",
        "many",
        "PATH",
        "Open PATH, which is hidden or protected as built in.",
        "filesystem.grant",
    ),
    Flag("--env", "env", "many", "NAME[=VALUE]", "Pass a variable, or set it.", "env.pass"),
    Flag(
        "--git",
        "git",
        "switch",
        "",
        "Let it commit; config and hooks stay read-only.",
        "filesystem.git",
    ),
    Flag("--socket", "socket", "many", "PATH", "Let it connect to a Unix socket outside.", "filesystem.sockets"),
    Flag("--device", "device", "many", "PATH", "Let it use a device, such as /dev/kvm.", "filesystem.devices"),
    Flag("--wall", "wall", "one", "TIME", "End it after TIME, such as 90s, 30m or 2h.", "limits.wall"),
    Flag("--memory", "memory", "one", "SIZE", "For all its processes together, such as 8GiB.", "limits.memory"),
    Flag("--processes", "processes", "number", "N", "How many processes it may have at once.", "limits.processes"),
    Flag("--file-size", "file_size", "one", "SIZE", "The largest file it may write.", "limits.file-size"),
    Flag(
        "--disk-free",
        "disk_free",
        "one",
        "SIZE",
        "End it when a disk it writes on has less left.",
        "limits.disk-free",
    ),
    Flag(
        "--preset",
        "preset",
        "one",
        "NAME",
        "What an agent needs: claude, ... (`skep workers`).",
        "worker.preset",
    ),
    Flag(
        "--toolchain",
        "toolchain",
        "many",
        "NAME",
        "The registry of python, node, rust, go or jvm.",
        "worker.toolchains",
    ),
    Flag("--strict", "strict", "switch", "", "No Unix sockets and no sandbox inside it either."),
)
REPORT_FLAG: Final = Flag("--report", "report", "one", "FILE", "Write what was in force and happened, as JSON.")


class Flags(Record):
    """What was typed, as typed."""

    policy: str | None = None
    allow: list[str] = []
    deny: list[str] = []
    write: list[str] = []
    protect: list[str] = []
    hide: list[str] = []
    grant: list[str] = []
    env: list[str] = []
    git: bool = False
    socket: list[str] = []
    device: list[str] = []
    wall: str | None = None
    memory: str | None = None
    processes: int | None = None
    file_size: str | None = None
    disk_free: str | None = None
    preset: str | None = None
    toolchain: list[str] = []
    strict: bool = False
    report: str | None = None

    def written(self) -> Written:
        """The layer these flags are. Raises PolicyError for a value that cannot be used."""
        split = [text.partition("=") for text in self.env]
        lists: dict[str, tuple[str, ...]] = {}
        values: dict[str, Any] = {SET + name: value for name, equals, value in split if equals}
        for flag in POLICY_FLAGS:
            value = getattr(self, flag.field)
            if not flag.key or value is None or value is False:
                continue
            if flag.kind == "many":
                lists[flag.key] = tuple(value)
            else:
                values[flag.key] = value
        lists["env.pass"] = tuple(name for name, equals, _ in split if not equals)
        said = Written({key: items for key, items in lists.items() if items}, values)
        check(said, source=SOURCE)
        return said


def number(text: str) -> int | None:
    """A whole number in digits; None for what is none, or is longer than any limit."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS else None


def parse_simple(words: Sequence[str], table: Sequence[Flag]) -> tuple[Flags, list[str]] | None:
    """The flags before `--` and the command after it; None for whatever this parser leaves to click, errors included.

    It accepts a subset of click's grammar: full names, `--name value` and `--name=value`, a command after `--`. That
    is what scripts and agents type a thousand times a day, and click costs more to import than the sandbox to start.
    """
    known = {flag.name: flag for flag in table}
    values: dict[str, Any] = {}
    rest: Iterator[str] = iter(words)
    for word in rest:
        if word == "--":
            command = list(rest)
            return (Flags(**values), command) if command else None
        name, equals, value = word.partition("=")
        flag = known.get(name)
        if flag is None:
            return None
        if flag.kind == "switch":
            if equals:
                return None
            values[flag.field] = True
            continue
        if not equals:
            value = next(rest, None)
            if value is None or value == "--":
                return None
        if flag.kind == "number":
            values[flag.field] = number(value)
            if values[flag.field] is None:
                return None
        elif flag.kind == "many":
            values.setdefault(flag.field, []).append(value)
        else:
            values[flag.field] = value
    return None
