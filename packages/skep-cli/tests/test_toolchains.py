"""What the tools' own configuration says becomes policy; what a project says never does.

The tools here are scripts that say what the real ones say; those of this machine are asked in `test_toolchains_real`.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from skep_cli.toolchains import cargo, golang, layers_for, maven, npm, pypi
from skep_cli.toolchains.found import destination, rules, without_credentials
from skep_cli.toolchains.probe import Host
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.layers import Layer, merge
from skep_policy.policy import Env, Filesystem, Network, Policy

NPM = """\
; "default" config from default values
_auth = (protected)
; registry = "https://default.example/" ; overridden by user
ignore-scripts = false ; overridden by nothing
userconfig = "{home}/.npmrc"
strict-ssl = true

; "global" config from /opt/etc/npmrc
cafile = "/opt/ca.pem"

; "user" config from {home}/.npmrc
//npm.example/:_authToken = (protected)
@corp:registry = "http://10.1.2.3:4873/"
registry = "https://me:***@npm.example:8443/npm/"
ignore-scripts = true

; "env" config from environment
fund = false
"""
PIP = """\
https://default.example/simple files.example
global.index-url='https://me:secret@pip.example/simple'
install.timeout='7'
global.timeout='5'
global.extra-index-url='\\nhttp://10.9.9.9:3141/root\\nfile:///srv/wheels'
:env:.no-input='1'
"""
PIP_DEFAULT = "https://default.example/simple files.example\n"


class Machine:
    """A home, a PATH of fake tools and a project, none of which are this machine's."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.bin = root / "bin"
        self.project = self.home / "project"
        for folder in (self.home, self.bin, self.project):
            folder.mkdir(parents=True, exist_ok=True)
        self.environ = {"HOME": str(self.home), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def tool(self, name: str, script: str, folder: Path | None = None) -> Path:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def says(self, name: str, text: str) -> None:
        self.tool(name, f"cat <<'END'\n{text}END")

    @property
    def facts(self) -> Facts:
        return Facts(
            home=str(self.home),
            user="u",
            uid=os.getuid(),
            gid=os.getgid(),
            cwd=str(self.project),
            environ=self.environ,
        )

    def layer(self, name: str, *others: Layer, project: str | None = None) -> Layer:
        merged = merge(others)
        [layer] = layers_for([name], facts=self.facts, others=merged, project=project or str(self.project))
        return layer


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def env_of(layer: Layer) -> Mapping[str, str]:
    return layer.policy.env.set


def test_npm_registries_and_scopes_become_rules_for_their_one_port(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    layer = machine.layer("node")
    assert layer.source == "toolchain node"
    assert sorted(layer.policy.network.allow) == ["10.1.2.3:4873", "npm.example:8443"]
    assert layer.policy.network.private == ("npm.example",), "an address is its own rule"
    decide = merge([layer]).rules().decide
    assert decide("npm.example", 8443).allow and decide("10.1.2.3", 4873).allow
    assert not decide("npm.example", 443).allow and not decide("default.example", 443).allow


def test_what_npm_cannot_see_inside_is_handed_on_without_passwords(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    env = env_of(machine.layer("node"))
    assert env["npm_config_registry"] == "https://npm.example:8443/npm/"
    assert Path(env["npm_config_userconfig"]).read_text() == "@corp:registry=http://10.1.2.3:4873/\n"
    assert env["npm_config_ignore_scripts"] == "true", "who forbids install scripts forbids them inside as well"
    assert env["npm_config_fund"] == "false"
    assert env["npm_config_cache"].startswith("/tmp/")
    assert "npm_config_cafile" not in env, "the system's file is readable inside"
    assert "npm_config_strict_ssl" not in env, "a default needs no variable"
    assert not any("auth" in name.lower() or "secret" in value for name, value in env.items())


def test_a_granted_npmrc_is_left_to_npm(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    granted = Layer("flag", Policy(filesystem=Filesystem(grant=("~/.npmrc",))))
    layer = machine.layer("node", granted)
    assert not env_of(layer).keys() & {"npm_config_registry", "npm_config_userconfig"}
    assert env_of(layer)["npm_config_fund"] == "false"
    assert "npm.example:8443" in layer.policy.network.allow


def test_what_others_set_or_pass_by_name_is_theirs(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    machine.environ["npm_config_registry"] = "https://me:secret@npm.example:8443/npm/"
    own = Layer("user", Policy(env=Env(pass_=("npm_config_*",), set={"npm_config_cache": "/srv/cache"})))
    env = env_of(machine.layer("node", own))
    assert "npm_config_registry" not in env and "npm_config_cache" not in env
    assert "npm_config_ignore_scripts" in env, "the pattern passes only what the host has"


@pytest.mark.guarantee("net-toolchain")
def test_neither_a_tool_nor_a_setting_of_the_project_is_used(machine: Machine, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    folder = machine.project / "node_modules" / ".bin"
    planted = machine.tool("npm", f"touch {proof}", folder)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "npm").symlink_to(planted)
    machine.environ["PATH"] = f"{folder}:{linked}:node_modules/.bin:{machine.environ['PATH']}"
    machine.tool("npm", 'pwd >"$HOME/where"; cat <<END\n' + NPM.format(home=machine.home) + "END")
    assert machine.layer("node").policy.network.allow
    assert not proof.exists()
    where = (machine.home / "where").read_text().strip()
    assert not where.startswith(str(machine.project))
    assert os.listdir(where) == ["node.json"], "asking leaves what was said and nothing else"


def test_configuration_that_the_worker_could_write_is_refused_by_name(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    with pytest.raises(PolicyError, match="where the worker writes"):
        machine.layer("node", project=str(machine.home))
    machine.says("python3", PIP)
    for path in ("~", "~/.config", ".."):
        opened = Layer("flag", Policy(filesystem=Filesystem(write=(path,))), base=str(machine.project))
        with pytest.raises(PolicyError, match="where the worker writes; run in a folder below"):
            machine.layer("python", opened)
    assert machine.layer("python", Layer("flag", Policy(filesystem=Filesystem(write=("~/.cache/x",)))))


def test_a_tool_that_is_missing_or_mute_is_refused_by_name(machine: Machine) -> None:
    machine.environ["PATH"] = f"{machine.bin}:relative"
    with pytest.raises(PolicyError, match=r"toolchain go: no go on PATH"):
        machine.layer("go")
    machine.tool("go", "echo 'go: broken here' >&2; exit 3")
    with pytest.raises(PolicyError, match=r"toolchain go: go does not say how it is configured: go: broken here"):
        machine.layer("go")
    with pytest.raises(PolicyError, match=r"unknown toolchain 'cobol'; known are go, jvm, node, python, rust"):
        machine.layer("cobol")


def test_an_index_of_pip_holds_for_uv_too_and_the_default_stays_shut(machine: Machine) -> None:
    machine.says("python3", PIP)
    layer = machine.layer("python")
    assert sorted(layer.policy.network.allow) == ["10.9.9.9:3141", "pip.example:443"]
    env = env_of(layer)
    assert env["PIP_INDEX_URL"] == env["UV_DEFAULT_INDEX"] == "https://pip.example/simple"
    assert env["PIP_EXTRA_INDEX_URL"] == "http://10.9.9.9:3141/root file:///srv/wheels"
    assert env["PIP_TIMEOUT"] == "7", "the command's own section beats the global one"
    assert env["PIP_NO_INPUT"] == "1"


def test_the_default_index_brings_the_host_of_its_files(machine: Machine) -> None:
    machine.says("python3", PIP_DEFAULT)
    layer = machine.layer("python")
    assert sorted(layer.policy.network.allow) == ["default.example:443", "files.example:443"]
    assert "PIP_INDEX_URL" not in env_of(layer) and "UV_DEFAULT_INDEX" not in env_of(layer)


def test_an_index_of_uv_holds_for_pip_too(machine: Machine) -> None:
    machine.says("python3", PIP_DEFAULT)
    folder = machine.home / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text(
        'system-certs = true\n[[index]]\nname = "corp"\nurl = "https://u:p@uv.example/simple"\ndefault = true\n'
        '[[index]]\nname = "more"\nurl = "http://u:p@[fd00::1]:8080/simple"\n'
    )
    layer = machine.layer("python")
    assert sorted(layer.policy.network.allow) == ["[fd00::1]:8080", "uv.example:443"]
    env = env_of(layer)
    assert env["UV_DEFAULT_INDEX"] == env["PIP_INDEX_URL"] == "https://uv.example/simple"
    assert env["UV_INDEX"] == "more=http://[fd00::1]:8080/simple"
    assert env["UV_SYSTEM_CERTS"] == "true"


def test_indexes_of_uv_in_the_environment() -> None:
    environ = {"UV_DEFAULT_INDEX": "https://a.example/", "UV_INDEX": "one=https://b.example/ https://c.example/x=y"}
    assert list(pypi.uv_indexes(environ, [])) == [
        ("https://a.example/", True),
        ("https://b.example/", False),
        ("https://c.example/x=y", False),
    ]


def test_go_proxies_and_its_checksum_database(machine: Machine) -> None:
    machine.says(
        "go", '{"GOPROXY": "https://u:p@go.example:8443/x|http://10.0.0.1,direct", "GOSUMDB": "sum.example+1+k"}\n'
    )
    machine.environ["GOPROXY"] = "https://u:p@go.example:8443/x|http://10.0.0.1,direct"
    layer = machine.layer("go")
    assert layer.policy.network.allow == ("go.example:8443", "10.0.0.1:80", "sum.example:443")
    assert env_of(layer)["GOPROXY"] == "https://go.example:8443/x|http://10.0.0.1,direct"
    assert golang.databases("off") == [] and golang.databases("sum.x https://y.example") == ["https://y.example"]


CARGO = """\
curl -s -x "$CARGO_HTTP_PROXY" https://index.example/config.json
echo "error: failed to get 'serde' as a dependency of package 'asks v0.0.0 ($PWD)'" >&2
exit 101
"""


def test_cargo_says_where_it_turns_and_its_index_where_the_files_are(machine: Machine) -> None:
    machine.tool("cargo", CARGO)
    kept = machine.home / ".cargo/registry/index/index.example-0123/config.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"dl": "https://static.example/crates/{crate}", "api": "https://api.example"}')
    (machine.home / ".cargo/config.toml").write_text(
        '[net]\nretry = 2\ngit-fetch-with-cli = true\n[registries.my-corp]\nindex = "sparse+https://10.0.0.2:8080/index/"\n'
        'token = "secret"\n'
    )
    layer = machine.layer("rust")
    assert layer.policy.network.allow == ("index.example:443", "10.0.0.2:8080", "static.example:443")
    env = env_of(layer)
    assert env["CARGO_REGISTRIES_MY_CORP_INDEX"] == "sparse+https://10.0.0.2:8080/index/"
    assert env["CARGO_NET_RETRY"] == "2" and env["CARGO_NET_GIT_FETCH_WITH_CLI"] == "true"
    assert "secret" not in str(env)
    assert env["CARGO_HOME"].startswith("/tmp/")


def test_the_index_that_cargo_asks_has_the_path_of_its_configuration(machine: Machine) -> None:
    """Of an https URL a proxy sees the host; where the files are is asked for below the path."""
    machine.tool("cargo", CARGO)
    (machine.home / ".cargo").mkdir()
    source = '[source.crates-io]\nreplace-with = "corp"\n[source.corp]\nregistry = "sparse+https://index.example/a/"\n'
    (machine.home / ".cargo/config.toml").write_text(source)
    [found] = cargo.read(Host(machine.facts, untrusted=[str(machine.project)]), {})
    assert found.registries == ("sparse+https://index.example/a/",)
    (machine.home / ".cargo/config.toml").write_text("")
    [found] = cargo.read(Host(machine.facts, untrusted=[str(machine.project)]), {})
    assert found.registries == ("https://index.example:443/",)


def test_cargo_with_vendored_sources_needs_no_host_and_a_broken_one_is_told(machine: Machine) -> None:
    machine.tool("cargo", "echo 'error: no matching package named `serde` found' >&2; exit 101")
    assert machine.layer("rust").policy.network.allow == ()
    machine.tool("cargo", "echo 'error: rustup could not choose a version of cargo to run' >&2; exit 1")
    with pytest.raises(PolicyError, match="rustup could not choose a version"):
        machine.layer("rust")


def test_replaced_sources_that_cargo_would_not_find_inside_are_refused(machine: Machine, tmp_path: Path) -> None:
    machine.tool("cargo", CARGO)
    text = '[source.crates-io]\nreplace-with = "corp"\n[source.corp]\nregistry = "sparse+https://corp.example/"\n'
    (machine.home / ".cargo").mkdir()
    (machine.home / ".cargo/config.toml").write_text(text)
    assert machine.layer("rust").policy.network.allow == ("index.example:443",), "below the home folder it is found"
    machine.project = tmp_path / "elsewhere"
    machine.project.mkdir()
    with pytest.raises(PolicyError, match="which it finds inside only for projects below"):
        machine.layer("rust")


def test_dl_of_a_registry() -> None:
    assert cargo.dl_of(b'{"dl": "https://a.example/{crate}/{version}"}') == "https://a.example/"
    assert cargo.dl_of(b'{"api": "https://a.example"}') is None
    assert cargo.dl_of(b"<html>") is None and cargo.dl_of(b"[]") is None


SETTINGS = """\
<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0">
  <mirrors>
    <mirror><id>none</id><mirrorOf>external:http:*</mirrorOf><url>http://0.0.0.0/</url><blocked>true</blocked></mirror>
    <mirror><id>corp</id><mirrorOf>*,!own</mirrorOf><url>https://${env.WHERE}:8081/maven</url></mirror>
  </mirrors>
  <profiles>
    <profile><id>on</id><repositories>
      <repository><id>own</id><url>https://own.example/m2</url></repository>
      <repository><id>plain</id><url>http://plain.example/m2</url></repository>
    </repositories></profile>
    <profile><id>off</id><repositories><repository><id>x</id><url>https://x.example/</url></repository></repositories></profile>
  </profiles>
  <activeProfiles><activeProfile>on</activeProfile></activeProfiles>
</settings>
"""
MODEL = """\
<project><repositories><repository><id>central</id><url>https://central.example/m2</url></repository></repositories>
<pluginRepositories><pluginRepository><id>central</id><url>https://central.example/m2</url></pluginRepository>
</pluginRepositories></project>
"""


@pytest.fixture
def install_maven(machine: Machine, tmp_path: Path) -> Callable[[], None]:
    def install() -> None:
        home = tmp_path / "maven"
        machine.tool("mvn", "exit 1", home / "bin")
        (machine.bin / "mvn").symlink_to(home / "bin" / "mvn")
        (home / "lib").mkdir()
        with zipfile.ZipFile(home / "lib" / "maven-model-builder-3.9.9.jar", "w") as jar:
            jar.writestr("org/apache/maven/model/pom-4.0.0.xml", MODEL)

    return install


def test_maven_without_settings_asks_what_its_own_model_names(
    machine: Machine, install_maven: Callable[[], None]
) -> None:
    install_maven()
    machine.environ["MAVEN_OPTS"] = "-Xmx1g"
    layer = machine.layer("jvm")
    assert layer.policy.network.allow == ("central.example:443",)
    assert env_of(layer)["MAVEN_OPTS"].startswith("-Xmx1g -Dmaven.repo.local=/tmp/")


def test_mirrors_of_maven_count_where_maven_may_read_them(machine: Machine, install_maven: Callable[[], None]) -> None:
    install_maven()
    machine.environ["WHERE"] = "corp.example"
    (machine.home / ".m2").mkdir()
    (machine.home / ".m2/settings.xml").write_text(SETTINGS)
    with pytest.raises(PolicyError, match=r"hidden for its passwords; --grant .*settings\.xml lets Maven read it"):
        machine.layer("jvm")
    granted = Layer("flag", Policy(filesystem=Filesystem(grant=("~/.m2/settings.xml",))))
    layer = machine.layer("jvm", granted)
    assert sorted(layer.policy.network.allow) == ["corp.example:8081", "own.example:443"]


@pytest.mark.parametrize(
    ("pattern", "url", "meant"),
    [
        ("*", "https://a.example", True),
        ("other,one", "https://a.example", True),
        ("*,!one", "https://a.example", False),
        ("external:*", "https://a.example", True),
        ("external:*", "http://localhost:8080/x", False),
        ("external:http:*", "https://a.example", False),
        ("external:http:*", "http://a.example", True),
        ("two", "https://a.example", False),
    ],
)
def test_which_repositories_a_mirror_covers(pattern: str, url: str, meant: bool) -> None:
    assert maven.covers(pattern, maven.Repository("one", url)) is meant


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example/x", ("a.example", 443)),
        ("http://A.Example.:8080", ("a.example", 8080)),
        ("sparse+https://a.example/", ("a.example", 443)),
        ("https://u:p%40@a.example/", ("a.example", 443)),
        ("http://[::1]:4873/", ("::1", 4873)),
        ("file:///srv/x", None),
        ("/srv/wheels", None),
        ("./wheels", None),
    ],
)
def test_the_destination_of_a_registry(url: str, expected: tuple[str, int] | None) -> None:
    assert destination(url, source="t") == expected


@pytest.mark.parametrize(
    "url", ["https://", "https://a b/", "http://x:99999/", "https://127.1/", "https://a%00.example/"]
)
def test_a_registry_that_is_no_host_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(PolicyError, match="a registry that is no URL of a host") as error:
        destination(url.replace("://", "://u:secret@"), source="t")
    assert "secret" not in str(error.value)


def test_a_registry_on_loopback_is_a_service() -> None:
    allow, private = rules(["http://localhost:4873/", "http://127.0.0.1:3141/simple"], source="t")
    assert allow == ("localhost:4873", "127.0.0.1:3141") and private == ()
    layer = Layer("t", Policy(network=Network(allow=allow)))
    assert merge([layer]).rules().services == (("127.0.0.1", 3141), ("localhost", 4873))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://u:p@a.example/x", "https://a.example/x"),
        ("https://u:p@ss@a.example/x", "https://a.example/x"),
        ("https://u:p,|x@a.example", "https://a.example"),
        ("a=https://t@a.example b=https://b.example/c@d", "a=https://a.example b=https://b.example/c@d"),
        ("https://a.example|https://u:p@b.example,direct", "https://a.example|https://b.example,direct"),
        ("me@work", "me@work"),
    ],
)
def test_user_names_and_passwords_leave_urls(text: str, expected: str) -> None:
    assert without_credentials(text) == expected


def test_npm_settings_that_span_lines_or_are_protected_are_left_out() -> None:
    text = '; "user" config from /x\nca = [\n"a"\n]\n_auth = (protected)\nregistry = "https://a.example/"\n'
    assert [setting.key for setting in npm.parse(text)] == ["registry"]


def test_a_tool_that_hangs_on_the_terminal_gets_none(machine: Machine) -> None:
    machine.tool("npm", "cat; echo done")
    host = Host(machine.facts, untrusted=[str(machine.project)])
    assert host.ask([str(machine.bin / "npm")]) == "done\n"


def counting(machine: Machine, name: str, text: str) -> Callable[[], int]:
    """A tool that counts how often it was asked."""
    tally = machine.home / f"{name}.asked"
    machine.tool(name, f"echo x >>{tally}\ncat <<'END'\n{text}END")
    return lambda: len(tally.read_text().splitlines()) if tally.exists() else 0


def test_a_tool_is_asked_again_only_when_something_it_reads_has_changed(machine: Machine) -> None:
    asked = counting(machine, "npm", NPM.format(home=machine.home))
    first = machine.layer("node")
    assert machine.layer("node") == first and asked() == 1
    machine.environ["COLUMNS"] = "80"
    assert machine.layer("node") == first and asked() == 1, "the terminal is no configuration"

    (machine.home / ".npmrc").write_text("registry=https://other.example/\n")
    machine.layer("node")
    assert asked() == 2, "a file that was absent"
    machine.environ["npm_config_audit"] = "false"
    machine.layer("node")
    assert asked() == 3, "the environment"
    asked_anew = counting(machine, "npm", NPM.format(home=machine.home).replace("10.1.2.3", "10.1.2.4"))
    assert "10.1.2.4:4873" in machine.layer("node").policy.network.allow and asked_anew() == 4, "the tool itself"


def test_a_tool_earlier_on_the_path_is_asked(machine: Machine, tmp_path: Path) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    earlier = tmp_path / "earlier"
    machine.environ["PATH"] = f"{earlier}:{machine.environ['PATH']}"
    machine.layer("node")
    machine.tool(
        "npm", "cat <<'END'\n" + NPM.format(home=machine.home).replace("10.1.2.3", "10.1.2.5") + "END", earlier
    )
    assert "10.1.2.5:4873" in machine.layer("node").policy.network.allow


def test_what_is_remembered_is_the_users_alone_and_holds_no_password(machine: Machine) -> None:
    machine.says("python3", PIP)
    machine.layer("python")
    folder = Path(machine.facts.state_dir) / "toolchains"
    [kept] = folder.iterdir()
    assert kept.stat().st_mode & 0o077 == 0 and folder.stat().st_mode & 0o077 == 0
    assert b"pip.example" in kept.read_bytes() and b"secret" not in kept.read_bytes()
    kept.write_text("{broken")
    assert machine.layer("python").policy.network.allow


def test_an_answer_that_lacks_what_could_not_be_fetched_is_not_kept(machine: Machine) -> None:
    machine.tool("cargo", CARGO)
    assert machine.layer("rust").policy.network.allow == ("index.example:443",)
    assert os.listdir(Path(machine.facts.state_dir) / "toolchains") == []


def test_nothing_is_remembered_where_the_worker_could_write_it(machine: Machine) -> None:
    machine.says("npm", NPM.format(home=machine.home))
    machine.environ["XDG_STATE_HOME"] = str(machine.project / "state")
    with pytest.raises(PolicyError, match="where the worker writes"):
        machine.layer("node")


def test_variables_that_point_into_the_project_do_not_reach_the_tools(machine: Machine, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    planted = machine.tool("planted", f"touch {proof}", machine.project)
    (tmp_path / "alias").symlink_to(machine.project)
    machine.environ |= {
        "BASH_ENV": str(planted),
        "NODE_OPTIONS": f"--require {planted}",
        "RUSTUP_HOME": f"{machine.project}/rustup",
        "LD_LIBRARY_PATH": f"/opt/lib:{tmp_path}/alias/lib",
        "PIP_TIMEOUT": "7",
        "BESIDE": f"{machine.project}s",
    }
    machine.tool("npm", "exec bash -c env")
    host = Host(machine.facts, untrusted=[str(machine.project)])
    told = dict(line.split("=", 1) for line in host.ask([str(machine.bin / "npm")]).splitlines())
    assert told["HOME"] == str(machine.home) and told["PIP_TIMEOUT"] == "7" and "BESIDE" in told
    assert not told.keys() & {"BASH_ENV", "NODE_OPTIONS", "RUSTUP_HOME", "LD_LIBRARY_PATH"}
    assert not proof.exists()


@pytest.mark.parametrize(
    ("toolchain", "variable"),
    [
        ("python", "PIP_CONFIG_FILE"),
        ("python", "UV_CONFIG_FILE"),
        ("python", "XDG_CONFIG_HOME"),
        ("python", "XDG_CONFIG_DIRS"),
        ("rust", "CARGO_HOME"),
    ],
)
def test_a_variable_that_moves_configuration_into_the_project_is_refused(
    machine: Machine, toolchain: str, variable: str
) -> None:
    machine.says("python3", PIP)
    machine.tool("cargo", CARGO)
    machine.environ[variable] = str(machine.home / "own")
    assert machine.layer(toolchain).policy.network.allow
    machine.environ[variable] = str(machine.project / "own")
    with pytest.raises(PolicyError, match="where the worker writes"):
        machine.layer(toolchain)
