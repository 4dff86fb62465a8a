"""Boundary -> Launch: the profile, the command around the worker, and what the worker is told. Pure."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

import msgspec
from skep_policy.boundary import Boundary
from skep_policy.clients import proxy_environment, ssh_environment
from skep_policy.launch import Launch

from . import services as _services
from .keys import Unenforceable, refuse
from .places import canonical
from .profile import rules_for
from .sbpl import ProfileError, print_profile

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
"""By its absolute path: a name would be looked up on a PATH that others write."""

PROFILE = "profile"
"""Key of the profile in `Launch.files`. Its text stands in a file (`{path:profile}` in argv): macOS has no memfd, and a
profile in argv is too long for some boundaries and seen by everybody for all."""

MAX_TRIED = 200
"""Protected and hidden paths that the first program inside tries, of each kind: a tenth of a second's worth."""

CONTROL = "control"
"""The descriptor between the spawner and the first program inside (`{fd:control}` in argv)."""

PROXY_USER = "skep"

UNQUOTED = frozenset(string.ascii_letters + string.digits + "/._-+@")


class Proxy(msgspec.Struct, frozen=True):
    """Where the run's proxy listens on the loopback, and the token that tells its clients from everybody else's.

    macOS has no private loopback, so any program of the machine can connect to the port; only this run has the token.
    """

    port: int
    token: str


class Inside(msgspec.Struct, frozen=True):
    """What the first program inside is told, as JSON on its control descriptor. No secret stands in any argv."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    forbidden_write: str
    hidden: tuple[str, ...]
    protected: dict[str, str]
    port: int | None
    network: str
    processes: int | None
    file_size: int | None


def compile(
    boundary: Boundary,
    argv: Iterable[str],
    *,
    tag: str,
    python: str,
    shim: str,
    proxy: Proxy | None = None,
    terminal: str | None = None,
    services: Iterable[str] = (),
    reads: Iterable[str] = (),
    host_sockets: Iterable[str] = (),
    listen: bool = False,
    sandbox_exec: str = SANDBOX_EXEC,
) -> Launch:
    """The launch that enforces `boundary` on `argv`.

    `tag` names the run (letters, digits, dashes), in the unified log and to find its processes. `python` and `shim` are
    the interpreter and the program that run first inside, `reads` what these need where the boundary reads little
    (`spawn.first_program()`). `terminal` is the worker's own pseudo-terminal. `services` are Mach services the operator
    grants by name. `host_sockets` are where programs of the host listen (`spawn.listening()`): below a root these are
    not the worker's. `listen` lets servers of the worker take connections, from other machines too, since a profile
    cannot say from where. Raises Unenforceable where macOS cannot hold what the boundary says, naming the key.
    """
    argv = tuple(argv)
    if not argv:
        raise Unenforceable("no command", key="worker.command")
    if not tag or not tag.isascii() or not tag.replace("-", "").isalnum():
        raise ValueError(f"a tag of letters, digits and dashes, not {tag!r}")
    refuse(boundary)
    if boundary.rules.mode == "open":
        proxy = None
    elif boundary.rules.mode == "filtered" and proxy is None:
        raise Unenforceable("domains are filtered by a proxy and none was given", key="network.allow")
    granted = tuple(sorted(set(services)))
    for name in granted:
        if name in _services.FORBIDDEN:
            raise Unenforceable(f"{name} {_services.FORBIDDEN[name]}; it cannot be granted", key="services")
    connect = str(PurePosixPath(shim).with_name("connect.py"))
    for path in (python, shim):
        if boundary.access_to(canonical(path)) == 0 and boundary.read == "host":
            raise Unenforceable(f"{path} is hidden, and the first program inside needs it", key="filesystem.hide")
    try:
        text = print_profile(
            rules_for(
                boundary,
                port=proxy.port if proxy else None,
                tag=tag,
                terminal=terminal,
                allow_services=granted,
                reads=(python, shim, connect, *reads),
                host_sockets=host_sockets,
                listen=listen,
            ),
            message=tag,
        )
    except ProfileError as error:
        raise Unenforceable(str(error), key="filesystem") from None
    inside = Inside(
        argv=argv,
        env=worker_environment(boundary.env, proxy, (python, "-I", "-S", connect)),
        cwd=boundary.cwd,
        forbidden_write=_outside(boundary, tag),
        hidden=tuple(
            rule.path for rule in boundary.hides if rule.kind != "absent" and not boundary.access_to(rule.path)
        )[:MAX_TRIED],
        protected={
            rule.path if rule.kind == "file" else f"{rule.path}/.{tag}": rule.kind
            for rule in boundary.protects[:MAX_TRIED]
            if rule.kind != "absent" and boundary.access_to(rule.path) == 1
        },
        port=proxy.port if proxy else None,
        network=boundary.rules.mode,
        processes=boundary.limits.processes,
        file_size=boundary.limits.file_size,
    )
    command = (sandbox_exec, "-f", f"{{path:{PROFILE}}}", python, "-I", "-S", shim, f"{{fd:{CONTROL}}}")
    return Launch(
        argv=command,
        args=(),
        files={PROFILE: text.encode()},
        config=msgspec.json.encode(inside),
        destinations=(),
        layers=layers(boundary, proxied=proxy is not None),
        evidence=text,
    )


def layers(boundary: Boundary, *, proxied: bool) -> dict[str, bool | str]:
    """What is in force when this launch's worker runs."""
    limited = boundary.limits
    return {
        "filesystem": True,
        "pid": "signals and process information only; macOS has no process namespace",
        "ipc": "shared memory by name, System V refused; POSIX semaphores are the machine's",
        "mach": True,
        "environment": True,
        "sockets": True,
        "hidden": any(rule.kind != "absent" for rule in boundary.hides),
        "network": boundary.rules.mode != "open",
        "proxy": proxied,
        "transparent": "macOS cannot redirect what ignores the proxy; it reaches nothing",
        "strict": boundary.strict,
        "processes": limited.processes is not None,
        "file-size": limited.file_size is not None,
    }


def worker_environment(env: Mapping[str, str], proxy: Proxy | None, connect: Sequence[str] = ()) -> dict[str, str]:
    """The worker's environment: the boundary's, the way to the proxy, and where Apple's tools keep their caches.

    The token stands in the proxy's URL, as its user information. The loopback goes direct: what the policy lets through
    there is let through by the profile. `connect` is the command that leads ssh through the proxy; one with characters
    that a shell or ssh would take for something else is not named.
    """
    made = dict(env)
    # Links and clones are refused; these two would fail where others copy by themselves.
    made.setdefault("UV_LINK_MODE", "copy")
    made.setdefault("npm_config_package_import_method", "copy")
    if temporary := env.get("TMPDIR"):
        # xcrun and clang ignore TMPDIR and write below the user's shared cache folder, where what the worker leaves
        # would be loaded by the user's own compiler.
        made.setdefault("CLANG_MODULE_CACHE_PATH", str(PurePosixPath(temporary, "clang-modules")))
        made.setdefault("xcrun_nocache", "1")
    if proxy is not None:
        plain = f"http://127.0.0.1:{proxy.port}"
        ours = f"http://{PROXY_USER}:{proxy.token}@127.0.0.1:{proxy.port}"
        told = proxy_environment(proxy.port, transparent=False, services=False)
        made |= {name: ours if value == plain else value for name, value in told.items()}
        if connect and all(set(word) <= UNQUOTED for word in connect):
            made = {**ssh_environment(" ".join(connect)), **made}
    return made


def _outside(boundary: Boundary, tag: str) -> str:
    """A file that must not be creatable, in the first folder of the user's that no root covers."""
    for folder in (boundary.home, "/private/var/tmp", "/private/tmp", "/Users/Shared"):
        path = f"{folder.rstrip('/')}/.{tag}"
        if boundary.access_to(path) < 2:
            return path
    raise Unenforceable("every folder a user can write is a root; name narrower ones", key="filesystem.write")
