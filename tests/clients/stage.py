"""`skep exec` beside origins on loopback, whose names come from an /etc/hosts of this test's own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from skep_bwrap.find import find_bwrap
from skep_bwrap.seccomp import ARCHES, base_filter

from .kinds import COMPILERS, PROGRAMS, PYTHON, Client
from .origins import BAD, GOOD, SSHD, Ports, everything

ROOT = Path(__file__).parents[2]
SKEP = str(Path(sys.executable).with_name("skep"))
SEARCH = f"{ROOT}/.uv/bin:{os.environ.get('PATH', os.defpath)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/usr/local/go/bin"
HOSTS = f"127.0.0.1 localhost {GOOD} {BAD}\n::1 localhost\n"
CA_VARIABLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

WEAK_BWRAP = """#!{python} -IS
import os, sys
def file_of(data):
    copy = os.memfd_create("x", 0)
    os.write(copy, data)
    os.lseek(copy, 0, os.SEEK_SET)
    return copy
words = sys.argv[1:]
if "--args" in words:
    at = words.index("--args") + 1
    with os.fdopen(int(words[at]), "rb") as file:
        options = file.read().split(b"\\0")
{change}
    words[at] = str(file_of(b"\\0".join(options)))
os.execv({bwrap!r}, [{bwrap!r}, *words])
"""
NO_ROUTE = """
    at_capability = options.index(b"CAP_NET_ADMIN") if b"CAP_NET_ADMIN" in options else None
    if at_capability:
        del options[at_capability - 1 : at_capability + 1]
"""
NO_NF_TABLES = f"""
    at_filter = options.index(b"--seccomp") + 1
    os.close(int(options[at_filter]))
    options[at_filter] = b"%d" % file_of({base_filter(ARCHES[os.uname().machine])!r})
"""
WEAK = {"no route": NO_ROUTE, "no nf_tables": NO_NF_TABLES}
"""bwrap as on a machine whose kernel gives its children no CAP_NET_ADMIN, or knows no nf_tables."""


class Seen(NamedTuple):
    output: str
    error: str
    code: int
    report: dict[str, Any]

    def denied(self) -> set[str]:
        return {entry["host"] for entry in self.report["egress"]["denied"]}

    def allowed(self) -> set[tuple[str, int]]:
        return {(entry["host"], entry["port"]) for entry in self.report["egress"]["allowed"]}


def copied_environment(base: Path) -> str:
    """An interpreter with our libraries outside of /tmp, which is the worker's own inside."""
    copy = base / "environment"
    shutil.copytree(sys.prefix, copy, symlinks=True)
    return str(copy / Path(sys.executable).relative_to(sys.prefix))


class Stage:
    """One folder with everything; `exec` runs a script in a folder of its own as `skep exec` does, allowed to speak to
    GOOD only. Any number at a time.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.files = base / "files"
        self.home = base / "home"
        for folder in (self.files, self.home):
            folder.mkdir()
        self.ports = Ports(0, 0, 0, 0, 0, 0)
        self.python = PYTHON if not sys.prefix.startswith(("/tmp/", "/var/tmp/")) else copied_environment(base)

    def prepare(self) -> None:
        """Programs are compiled, with what there is to compile them."""
        for name, text in PROGRAMS.items():
            (self.files / name).write_text(text)
        for program, command in COMPILERS.items():
            if which(program):
                env = {**os.environ, "PATH": SEARCH, "GO111MODULE": "off"}
                done = subprocess.run(
                    command, shell=True, cwd=self.files, env=env, capture_output=True, text=True, timeout=300
                )
                assert done.returncode == 0, done.stderr
        self.make_weak_bwraps()
        (self.files / "hosts").write_text(HOSTS)
        network = {"allow": [f"{GOOD}:{port}" for port in self.ports], "private": [GOOD, BAD]}
        variables = dict.fromkeys(CA_VARIABLES, f"{self.files}/ca.pem")
        self.policy = self.files / "policy.toml"
        self.policy.write_text(
            f"network = {{ allow = {json.dumps(network['allow'])}, private = {json.dumps(network['private'])} }}\n"
            "[env]\nset = {" + ", ".join(f"{name} = {json.dumps(value)}" for name, value in variables.items()) + "}\n"
        )

    def words(self, client: Client, host: str) -> str:
        return client.script.format(
            host=host, files=self.files, python=self.python, user=getpass.getuser(), **self.ports._asdict()
        )

    def exec(self, script: str, *flags: str, weakened: str | None = None, descriptors: int | None = None) -> Seen:
        """What a shell script did inside. `descriptors` is the soft limit that skep itself starts with."""
        path = SEARCH
        if weakened:
            path = f"{self.weak_bwrap(weakened)}:{SEARCH}"
        workspace = Path(tempfile.mkdtemp(dir=self.home))
        report = self.base / f"{workspace.name}.json"
        command = [
            SKEP,
            "exec",
            "--policy",
            str(self.policy),
            "--report",
            str(report),
            *flags,
            "--",
            "sh",
            "-c",
            script,
        ]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -Sn {descriptors} && exec "$@"', "sh", *command]
        env = {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8", "USER": getpass.getuser()}
        done = subprocess.run(
            with_hosts(self.files / "hosts", command),
            cwd=workspace, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert report.exists() and report.stat().st_size, done.stderr
        seen: dict[str, Any] = json.loads(report.read_text())
        return Seen(done.stdout, done.stderr, done.returncode, seen)

    def weak_bwrap(self, how: str) -> Path:
        return self.base / how.replace(" ", "-")

    def make_weak_bwraps(self) -> None:
        real = find_bwrap(environ=os.environ)
        for how, change in WEAK.items():
            program = self.weak_bwrap(how) / "bwrap"
            program.parent.mkdir()
            program.write_text(WEAK_BWRAP.format(python=os.path.realpath(PYTHON), bwrap=real, change=change))
            program.chmod(0o755)


def with_hosts(table: Path, command: list[str]) -> list[str]:
    """The command in a mount namespace with another /etc/hosts; it is who it was, and has no capability more."""
    if os.geteuid() == 0:
        return ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(table), *command]
    inner = 'mount --bind "$0" /etc/hosts && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
    return ["unshare", "-U", "--map-current-user", "-m", "--keep-caps", "sh", "-c", inner, str(table), *command]


def which(program: str) -> str | None:
    if program == "sshd":
        return SSHD
    if program.startswith("-m "):
        module = program.removeprefix("-m ")
        done = subprocess.run(["/usr/bin/python3", "-c", f"import {module}"], capture_output=True)
        return program if done.returncode == 0 else None
    return shutil.which(program, path=SEARCH)


def version_of(client: Client) -> str:
    """The first word that begins with a digit of what it says of itself."""
    command = client.version.format(python=PYTHON)
    env = {**os.environ, "PATH": SEARCH}
    done = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, timeout=60)
    words = [word.rpartition("_")[2].strip("v,()go") for word in (done.stdout + done.stderr).split()]
    return next((word for word in words if word[:1].isdigit()), "")


@contextmanager
def staged(base: Path) -> Generator[Stage]:
    stage = Stage(base)
    with everything(stage.files) as ports:
        stage.ports = ports
        stage.prepare()
        yield stage
