"""Real tools install through the boundary, from a registry on loopback and from the one this machine is configured
for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from skep_cli.toolchains import layers_for
from skep_policy.facts import Facts

from .stage import git
from .yard import MODULE, PACKAGE, Registry, Yard, needs, ok, search_path

pytestmark = pytest.mark.sandbox

ELSEWHERE = "elsewhere.example"
NODE_PROJECT = {
    "package.json": json.dumps(
        {
            "name": "small",
            "version": "1.0.0",
            "scripts": {"test": f"node -e \"if (require('{PACKAGE}') !== 42) process.exit(1); console.log('tested')\""},
            "dependencies": {PACKAGE: "1.0.0"},
        }
    )
}
ASK_ELSEWHERE = f"""
import urllib.request
try:
    urllib.request.urlopen("http://{ELSEWHERE}/")
except Exception as error:
    print("elsewhere:", error)
"""


@pytest.mark.guarantee("net-toolchain")
@needs("npm")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_npm_installs_from_the_registry_of_its_own_configuration_only(
    yard: Yard, registry: Registry, host: str
) -> None:
    yard.write(NODE_PROJECT)
    place = f"{host}:{registry.port}"
    yard.write(
        {".npmrc": f"registry=http://{place}/npm/\n//{place}/npm/:_authToken=secret\nfetch-retries=0\n"},
        below=yard.home,
    )
    ok(yard.exec("npm", "install", flags=("--toolchain", "node")))
    assert ok(yard.exec("npm", "test", flags=("--toolchain", "node"))).endswith("tested\n")
    paths = [path for path, _ in registry.asked]
    assert f"/npm/{PACKAGE}" in paths and f"/npm/{PACKAGE}/-/{PACKAGE}-1.0.0.tgz" in paths
    assert {credentials for _, credentials in registry.asked} == {None}, "the token stays outside"

    told = ok(yard.exec("python3", "-c", ASK_ELSEWHERE, flags=("--toolchain", "node")))
    assert "403" in told and yard.destinations("denied") == {(ELSEWHERE, 80)}
    assert yard.destinations("allowed") == set()


@needs("npm")
def test_npm_has_its_token_where_its_file_is_granted(yard: Yard, registry: Registry) -> None:
    yard.write(NODE_PROJECT)
    place = f"127.0.0.1:{registry.port}"
    yard.write(
        {".npmrc": f"registry=http://{place}/npm/\n//{place}/npm/:_authToken=secret\n"},
        below=yard.home,
    )
    ok(yard.exec("npm", "install", flags=("--toolchain", "node", "--grant", "~/.npmrc")))
    assert {credentials for _, credentials in registry.asked} == {"Bearer secret"}


@needs("npm")
@pytest.mark.parametrize("read", ["host", "minimal"])
def test_npm_knows_the_registry_of_a_scope_through_any_shell(yard: Yard, registry: Registry, read: str) -> None:
    yard.write(
        {".npmrc": f"@corp:registry=http://127.0.0.1:{registry.port}/npm/\n_authToken=secret\n"}, below=yard.home
    )
    yard.write({"policy.toml": f'[filesystem]\nread = "{read}"\n'}, below=yard.state)
    flags = ("--toolchain", "node", "--policy", str(yard.state / "policy.toml"))
    told = ok(
        yard.exec(
            "sh", "-c", "npm config get @corp:registry; cat $npm_config_userconfig; cat ~/.npmrc; true", flags=flags
        )
    )
    assert told.splitlines()[0] == f"http://127.0.0.1:{registry.port}/npm/" and "secret" not in told


@pytest.mark.guarantee("net-toolchain")
@needs("npm")
def test_a_registry_that_the_project_names_is_not_reached(yard: Yard, registry: Registry) -> None:
    """The twin of the tests above: what counts there comes from the user, what is planted here from the project."""
    yard.write(NODE_PROJECT | {".npmrc": f"registry=http://127.0.0.1:{registry.port}/npm/\nfetch-retries=0\n"})
    done = yard.exec("npm", "install", flags=("--toolchain", "node"))
    assert done.returncode not in (0, 125), done.stdout + done.stderr
    assert registry.asked == []


@needs("npm")
def test_without_the_toolchain_nothing_is_reached(yard: Yard, registry: Registry) -> None:
    yard.write(NODE_PROJECT)
    yard.write({".npmrc": f"registry=http://127.0.0.1:{registry.port}/npm/\nfetch-retries=0\n"}, below=yard.home)
    assert yard.exec("npm", "install", "--cache", "/tmp/npm", "--fetch-retries=0").returncode not in (0, 125)
    assert registry.asked == []


ENVIRONMENT = "python3 -m venv v && v/bin/python -m pip install -q"
INSTALL = f"{ENVIRONMENT} {PACKAGE} && v/bin/python -c 'import {MODULE} as m; print(m.answer)'"


def needs_venv() -> pytest.MarkDecorator:
    there = subprocess.run(["python3", "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    return pytest.mark.skipif(not there, reason="python3 of PATH makes no environments with pip")


@needs_venv()
def test_pip_installs_from_the_index_of_its_own_configuration_only(yard: Yard, registry: Registry) -> None:
    index = f"http://me:secret@127.0.0.1:{registry.port}/simple"
    yard.write({".config/pip/pip.conf": f"[global]\nindex-url = {index}\nretries = 0\n"}, below=yard.home)
    told = ok(yard.exec("sh", "-c", INSTALL, flags=("--toolchain", "python")))
    assert told.splitlines()[-1] == "42"
    assert {credentials for _, credentials in registry.asked} == {None}, "the password stays outside"
    assert ("127.0.0.1", registry.port) in yard.destinations("allowed")
    assert yard.destinations("denied") == set()

    told = ok(yard.exec("python3", "-c", ASK_ELSEWHERE, flags=("--toolchain", "python")))
    assert "403" in told and yard.destinations("denied") == {(ELSEWHERE, 80)}


@needs_venv()
def test_pip_has_its_password_where_its_file_is_granted(yard: Yard, registry: Registry) -> None:
    index = f"http://me:secret@127.0.0.1:{registry.port}/simple"
    yard.write({".config/pip/pip.conf": f"[global]\nindex-url = {index}\n"}, below=yard.home)
    ok(yard.exec("sh", "-c", INSTALL, flags=("--toolchain", "python", "--grant", "~/.config/pip/pip.conf")))
    assert any(credentials and credentials.startswith("Basic ") for _, credentials in registry.asked)


@needs("uv")
def test_uv_asks_the_index_that_pip_is_configured_for(yard: Yard, registry: Registry) -> None:
    yard.write(
        {".config/pip/pip.conf": f"[global]\nindex-url = http://127.0.0.1:{registry.port}/simple\n"}, below=yard.home
    )
    yard.write(
        {
            "pyproject.toml": '[project]\nname = "small"\nversion = "1"\nrequires-python = ">=3.8"\n'
            f'dependencies = ["{PACKAGE}"]\n'
        }
    )
    ok(yard.exec("uv", "sync", "--no-python-downloads", flags=("--toolchain", "python")))
    told = ok(
        yard.exec(
            "uv", "run", "python", "-c", f"import {MODULE} as m; print(m.answer)", flags=("--toolchain", "python")
        )
    )
    assert told == "42\n"
    assert yard.destinations("denied") == set()


@needs("npm")
@pytest.mark.parametrize(("command", "told"), [("npm view left-pad", True), ("node -e 0", False)])
def test_a_registry_that_is_denied_is_told_with_the_toolchain_it_is_of(yard: Yard, command: str, told: bool) -> None:
    registry = "https://registry.example:8443/own/"
    yard.write({".npmrc": f"registry={registry}\nfetch-retries=0\n"}, below=yard.home)
    ask = f"curl -s {registry}; curl -s http://{ELSEWHERE}/; true || {command}"
    done = yard.exec("sh", "-c", ask)
    hint = "--toolchain node, whose registry it is, or " if told else ""
    assert (
        f"skep: denied registry.example:8443: not in the allowlist; {hint}--allow registry.example:8443" in done.stderr
    )
    assert f"skep: denied {ELSEWHERE}:80: not in the allowlist; --allow {ELSEWHERE}" in done.stderr

    words = ("run", ".", "t", "--worker", "sh -c 'curl -s https://registry.example:8443/own/; true'")
    run = yard.outside(sys.executable, "-m", "skep_cli", *words)
    assert (
        "registry.example:8443: not in the allowlist; --toolchain node, whose registry it is, or --allow" in run.stderr
    )


def linked(yard: Yard, name: str, script: str) -> Path:
    """A program on PATH that is a link, to what is nowhere on PATH: such a folder may be one the worker writes."""
    yard.write({f"lib/{name}": script, "tools/.keep": ""}, below=yard.home)
    (yard.home / "lib" / name).chmod(0o755)
    path = yard.home / "tools" / name
    path.symlink_to(f"../lib/{name}")
    return path


@needs("curl")
@pytest.mark.parametrize("words", [("exec", "--"), ("run", ".", "t", "--worker")], ids=["exec", "run"])
@pytest.mark.parametrize("writable", [False, True])
def test_no_tool_that_the_worker_could_write_is_asked_whose_registry_it_is(
    yard: Yard, words: tuple[str, ...], writable: bool
) -> None:
    asked = yard.home / "asked"
    says = '; "user" config from a file\\nregistry = "https://registry.example:8443/"\\n'
    npm = linked(yard, "npm", f"#!/bin/sh\n: >> '{asked}'\nprintf '{says}'\n")
    script = "curl -s https://registry.example:8443/; true || npm"
    command = ("sh", "-c", script) if words[0] == "exec" else (f"sh -c '{script}'",)
    flags = ("--write", "~/lib") if writable else ()
    path = f"PATH={npm.parent}:{search_path()}"
    done = yard.outside("env", path, sys.executable, "-m", "skep_cli", words[0], *flags, *words[1:], *command)
    assert "denied registry.example:8443: not in the allowlist" in done.stderr + done.stdout
    assert asked.exists() is not writable
    assert ("--toolchain node" in done.stderr + done.stdout) is not writable


@needs("curl")
def test_a_tool_that_cannot_be_asked_changes_nothing_of_what_a_command_did(yard: Yard) -> None:
    """Nothing can be made in the folder the tools are asked from: as on a full disk, for root too."""
    (yard.state / "skep").mkdir(exist_ok=True)
    shutil.rmtree(yard.state / "skep/toolchains", ignore_errors=True)
    (yard.state / "skep/toolchains").symlink_to("/proc")
    npm = linked(yard, "npm", "#!/bin/sh\necho unasked\n")
    script = "curl -s https://registry.example:8443/; exit 3 || npm"
    words = ("env", f"PATH={npm.parent}:{search_path()}", sys.executable, "-m", "skep_cli")
    done = yard.outside(*words, "exec", "--", "sh", "-c", script)
    assert done.returncode == 3 and "denied registry.example:8443" in done.stderr
    done = yard.outside(*words, "run", ".", "t", "--worker", f"sh -c '{script}'")
    assert done.returncode == 1 and "denied registry.example:8443" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("flags", [(), ("--write", "~/lib"), ("--write", "~/lib", "--protect", "~/lib/git")])
def test_a_git_that_the_worker_could_write_makes_no_patch(yard: Yard, flags: tuple[str, ...]) -> None:
    planted = linked(yard, "git", f'#!/bin/sh\nexec {shutil.which("git")} "$@"\n')
    words = ("env", f"PATH={planted.parent}:{search_path()}", sys.executable, "-m", "skep_cli")
    done = yard.outside(*words, "run", ".", "t", "--worker", "sh -c 'echo more > file'", *flags)
    if flags == ("--write", "~/lib"):
        assert done.returncode == 125 and not list((yard.state / "skep/runs").glob("*"))
        [line] = done.stderr.splitlines()
        assert line.startswith(
            f"skep: {planted.resolve()} runs on this machine after the worker, which may write it: put another"
        )
    else:
        assert done.returncode == 0, done.stderr


@needs("npm")
def test_a_policy_file_asks_for_a_toolchain_and_an_untrusted_project_does_not(yard: Yard, registry: Registry) -> None:
    yard.write(NODE_PROJECT | {"skep.toml": '[worker]\ntoolchains = ["node"]\n'})
    yard.write({".npmrc": f"registry=http://127.0.0.1:{registry.port}/npm/\nfetch-retries=0\n"}, below=yard.home)
    done = yard.exec("npm", "install", "--cache", "/tmp/npm", "--fetch-retries=0")
    assert done.returncode not in (0, 125) and "worker.toolchains = node" in done.stderr and registry.asked == []
    yard.write({".config/skep/config.toml": '[worker]\ntoolchains = ["node"]\n'}, below=yard.home)
    ok(yard.exec("npm", "install"))
    assert registry.asked


@needs("npm")
def test_a_run_installs_and_its_patch_is_what_belongs_to_the_project(yard: Yard, registry: Registry) -> None:
    yard.write({".npmrc": f"registry=http://127.0.0.1:{registry.port}/npm/\nfetch-retries=0\n"}, below=yard.home)
    yard.write(NODE_PROJECT | {".gitignore": "node_modules/\n", "answer.js": "module.exports = 41\n"})
    git(yard.project, "init", "-q")
    git(yard.project, "add", "-A")
    git(yard.project, "commit", "-qm", "base")
    yard.write(
        {"worker.sh": "set -e\nnpm install --no-audit --no-fund\nnpm test\necho 'module.exports = 42' >answer.js\n"},
        below=yard.home,
    )
    done = yard.outside(
        *(sys.executable, "-m", "skep_cli", "run", ".", "mend it", "--toolchain", "node", "--json"),
        *(
            "--worker",
            f"sh {yard.home}/worker.sh",
            "--verify",
            "node -e 'if (require(\"./answer.js\") !== 42) process.exit(1)'",
        ),
    )
    run = json.loads(ok(done).splitlines()[-1])
    assert run["verification"]["outcome"] == "passed"
    assert run["files_changed"] == ["answer.js", "package-lock.json"]
    assert {(entry["host"], entry["port"]) for entry in run["egress"]["allowed"]} == {("127.0.0.1", registry.port)}
    assert run["egress"]["denied"] == []
    assert not (yard.project / "node_modules").exists()


def configured(toolchain: str, yard: Yard) -> tuple[str, int]:
    """A host of the toolchain's registry that answers outside the sandbox; a skip when none does, since then it is not
    the sandbox that is broken.
    """
    environ = {**os.environ, "XDG_STATE_HOME": str(yard.state)}
    facts = Facts.gather()
    facts = Facts(facts.home, facts.user, facts.uid, facts.gid, str(yard.project), environ)
    [layer] = layers_for([toolchain], facts=facts)
    reasons: list[str] = []
    for rule in layer.policy.network.allow:
        host, _, port = rule.rpartition(":")
        try:
            urlopen(f"{'http' if port == '80' else 'https'}://{rule}/", timeout=60).close()
        except HTTPError:
            pass  # it answers, and that is what was asked
        except OSError as error:
            reasons.append(f"{rule}: {error}")
            continue
        return host, int(port)
    pytest.skip(f"the registry this machine is configured for does not answer outside the sandbox: {reasons}")


@needs("npm")
def test_npm_installs_and_tests_with_the_configured_registry(yard: Yard) -> None:
    host = configured("node", yard)
    yard.write(
        {
            "package.json": json.dumps(
                {
                    "name": "small",
                    "version": "1.0.0",
                    "scripts": {"test": "mocha --reporter dot"},
                    "dependencies": {"is-odd": "3.0.1"},
                    "devDependencies": {"mocha": "^10"},
                }
            ),
            "test/small.js": "const odd = require('is-odd')\n"
            "describe('odd', () => it('knows', () => { if (!odd(3) || odd(4)) throw new Error('no') }))\n",
        }
    )
    flags = ("--toolchain", "node")
    ok(yard.exec("npm", "install", "--no-audit", "--no-fund", flags=flags, own_home=False))
    assert host in yard.destinations("allowed") and yard.destinations("denied") == set()
    assert "1 passing" in ok(yard.exec("npm", "test", flags=flags, own_home=False))
    ok(yard.exec("python3", "-c", ASK_ELSEWHERE, flags=flags, own_home=False))
    assert yard.destinations("denied") == {(ELSEWHERE, 80)}


PROJECT = {
    "pyproject.toml": '[project]\nname = "small"\nversion = "0.1.0"\nrequires-python = ">=3.9"\n'
    'dependencies = ["click>=8", "requests>=2.30"]\n[dependency-groups]\ndev = ["pytest>=7"]\n',
    "test_small.py": "import click, requests\n\ndef test_it():\n    assert click.command and requests.get\n",
}


@needs("uv")
def test_uv_syncs_and_runs_the_tests_with_the_configured_index(yard: Yard) -> None:
    configured("python", yard)
    yard.write(PROJECT)
    flags = ("--toolchain", "python")
    ok(yard.exec("uv", "sync", "--no-python-downloads", flags=flags, own_home=False))
    assert yard.destinations("denied") == set()
    assert "1 passed" in ok(yard.exec("uv", "run", "pytest", "-q", flags=flags, own_home=False))
    ok(yard.exec("uv", "venv", "other", "--no-python-downloads", flags=flags, own_home=False))
    assert (yard.project / "other/bin/python").exists()


@needs_venv()
def test_pip_installs_with_the_configured_index(yard: Yard) -> None:
    configured("python", yard)
    script = f"{ENVIRONMENT} six click && v/bin/python -c 'import six, click; print(42)'"
    assert ok(yard.exec("sh", "-c", script, flags=("--toolchain", "python"), own_home=False)).endswith("42\n")
    assert yard.destinations("denied") == set()


@needs("cargo")
def test_cargo_reaches_its_registry_or_is_told_why_not(yard: Yard) -> None:
    """Allowed for cargo, so that its failure is the registry's; denied without the toolchain."""
    yard.write(
        {
            "Cargo.toml": '[package]\nname = "a"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nitoa = "1"\n',
            "src/lib.rs": "",
        }
    )
    fetch = ("sh", "-c", "CARGO_HOME=/tmp/cargo CARGO_NET_RETRY=0 cargo fetch")
    yard.exec(*fetch, flags=("--toolchain", "rust"), own_home=False)
    asked = yard.destinations("allowed")
    assert yard.destinations("denied") == set()
    done = yard.exec(*fetch, flags=("--allow", "registry.example"), own_home=False)
    assert done.returncode not in (0, 125)
    assert asked and asked <= yard.destinations("denied") | asked
    assert asked & yard.destinations("denied")


@needs("npm")
@pytest.mark.parametrize(
    ("manager", "install"),
    [
        ("pnpm@9", "pnpm install --reporter=append-only && pnpm test"),
        ("yarn@1", "yarn --no-default-rc install --no-progress && yarn --no-default-rc test"),
    ],
)
def test_other_package_managers_of_node_install_and_test_with_the_configured_registry(
    yard: Yard, manager: str, install: str
) -> None:
    configured("node", yard)
    yard.write(
        {
            "package.json": json.dumps(
                {
                    "name": "small",
                    "version": "1.0.0",
                    "scripts": {
                        "test": "node -e \"if (!require('is-odd')(3)) process.exit(1); console.log('tested')\""
                    },
                    "dependencies": {"is-odd": "3.0.1"},
                }
            )
        }
    )
    flags = ("--toolchain", "node")
    script = f"npm install --silent --global --prefix /tmp/tool {manager} && PATH=/tmp/tool/bin:$PATH && {install}"
    told = ok(yard.exec("sh", "-ec", script, flags=flags, own_home=False))
    assert "tested" in told and (yard.project / "node_modules/is-odd/package.json").exists()
    assert yard.destinations("denied") == set()


def test_this_python_is_found_when_no_other_is(yard: Yard) -> None:
    """What pip asks by default is known wherever skep runs, pip on PATH or not."""
    facts = Facts.gather()
    environ = {"HOME": str(yard.home), "PATH": str(Path(sys.executable).parent), "XDG_STATE_HOME": str(yard.state)}
    facts = Facts(str(yard.home), "u", facts.uid, facts.gid, str(yard.project), environ)
    [layer] = layers_for(["python"], facts=facts)
    assert len(layer.policy.network.allow) == 2, "the index, and the host of its files"
