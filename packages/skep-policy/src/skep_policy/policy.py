"""What a person writes. One type, one schema; every key is kebab-case and unknown keys are errors.

Values stay as written (`"30m"`, `"~/.cache"`): `resolve` gives them meaning, so that `policy show`
prints what the file says.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Table(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A table of the policy file."""


class Filesystem(Table, frozen=True):
    write: tuple[str, ...] = ()
    protect: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    grant: tuple[str, ...] = ()
    read: Literal["host", "minimal"] | None = None
    git: bool | None = None
    devices: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


class Network(Table, frozen=True):
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    sni: Literal["match", "off"] | None = None
    max_bytes_out: str | None = None


class Env(Table, frozen=True):
    pass_: tuple[str, ...] = msgspec.field(name="pass", default=())
    set: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class Limits(Table, frozen=True):
    wall: str | None = None
    memory: str | None = None
    processes: int | None = None
    file_size: str | None = None
    disk_free: str | None = None


class Worker(Table, frozen=True):
    command: tuple[str, ...] | None = None
    preset: str | None = None
    verify: tuple[str, ...] | None = None
    toolchains: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    """Commands that make the workspace ready, each split as a shell splits words."""


class Verify(Table, frozen=True):
    network: tuple[str, ...] = ()
    """What the verification may reach; nothing unless written."""


class Setup(Table, frozen=True):
    """What the setup may reach besides what the worker may."""

    network: tuple[str, ...] = ()
    toolchains: tuple[str, ...] = ()


class Policy(Table, frozen=True):
    filesystem: Filesystem = msgspec.field(default_factory=Filesystem)
    network: Network = msgspec.field(default_factory=Network)
    env: Env = msgspec.field(default_factory=Env)
    limits: Limits = msgspec.field(default_factory=Limits)
    worker: Worker = msgspec.field(default_factory=Worker)
    verify: Verify = msgspec.field(default_factory=Verify)
    setup: Setup = msgspec.field(default_factory=Setup)
