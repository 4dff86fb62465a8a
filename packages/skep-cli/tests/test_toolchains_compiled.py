"""cargo, go, Maven and Gradle build and test small projects in the boundary, each with a dependency from a registry on
loopback that its user is configured for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping

import msgspec
import pytest

from .registries import CRATE, DEBIAN_MAVEN, GO_MODULE, MavenRepository, cargo_registry, go_proxy, newest
from .stage import git
from .yard import Registry, Yard, needs, ok

pytestmark = pytest.mark.sandbox

ELSEWHERE = "elsewhere.example"
ARTIFACTS = ("org/apache/maven/plugins/maven-surefire-plugin", "org/apache/commons/commons-lang3", "junit/junit")
needs_artifacts = pytest.mark.skipif(
    not all((DEBIAN_MAVEN / name).is_dir() for name in ARTIFACTS), reason=f"{DEBIAN_MAVEN} has not all of {ARTIFACTS}"
)


class Project(msgspec.Struct, frozen=True):
    """A project whose test wants 42 of it, its dependency helping, and gets 41 by the file `wrong`."""

    toolchain: str
    served: Mapping[str, bytes]
    home: dict[str, str]
    """What its user has configured, below the home folder."""
    files: dict[str, str]
    wrong: str
    test: str
    made: tuple[str, ...] = ()
    """What building it makes that belongs to it."""
    flags: tuple[str, ...] = ()


def rust(port: int) -> Project:
    index = f"sparse+http://127.0.0.1:{port}/index/"
    source = f'[source.crates-io]\nreplace-with = "here"\n[source.here]\nregistry = "{index}"\n'
    return Project(
        "rust",
        cargo_registry("/index", f"http://127.0.0.1:{port}"),
        {".cargo/config.toml": source},
        {
            "Cargo.toml": '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n'
            f'[dependencies]\n{CRATE} = "1"\n',
            "src/lib.rs": "pub fn answer() -> i32 { 41 }\n"
            f"#[test]\nfn answers() {{ assert_eq!(answer(), {CRATE}::answer()); }}\n",
            ".gitignore": "target/\n",
        },
        "src/lib.rs",
        "cargo test --lib",
        made=("Cargo.lock",),
    )


def go(port: int) -> Project:
    return Project(
        "go",
        go_proxy("/go"),
        {".config/go/env": f"GOPROXY=http://127.0.0.1:{port}/go\nGONOSUMDB=*\nGOSUMDB=off\n"},
        {
            "go.mod": f"module small\n\ngo 1.18\n\nrequire {GO_MODULE} v1.0.0\n",
            "small.go": "package small\n\nfunc Answer() int { return 41 }\n",
            "small_test.go": f'package small\n\nimport (\n\t"testing"\n\n\t"{GO_MODULE}"\n)\n\n'
            "func TestAnswer(t *testing.T) {\n\tif Answer() != demo.Answer() {\n\t\tt.Fatal()\n\t}\n}\n",
        },
        "small.go",
        "go mod tidy && go test ./...",
        made=("go.sum",),
    )


JAVA = {
    "src/main/java/small/Small.java": "package small;\nimport org.apache.commons.lang3.StringUtils;\n"
    'public class Small { public static String twice() { return StringUtils.repeat("41", 2); } }\n',
    "src/test/java/small/SmallTest.java": "package small;\nimport org.junit.*;\n"
    'public class SmallTest { @Test public void answers() { Assert.assertEquals("4242", Small.twice()); } }\n',
    ".gitignore": "target/\nbuild/\n.gradle/\n",
}


def maven(port: int, *, mirrored: str = "*", repositories: str = "", dependency: str = "") -> Project:
    mirror = f"<mirror><id>m</id><mirrorOf>{mirrored}</mirrorOf><url>http://127.0.0.1:{port}/maven</url></mirror>"
    commons = f"<artifactId>commons-lang3</artifactId><version>{newest('org/apache/commons/commons-lang3')}</version>"
    junit = f"<artifactId>junit</artifactId><version>{newest('junit/junit')}</version><scope>test</scope>"
    pom = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>skep.test</groupId><artifactId>small</artifactId><version>1</version>
<properties><maven.compiler.release>11</maven.compiler.release>
<project.build.sourceEncoding>UTF-8</project.build.sourceEncoding></properties>
<repositories>{repositories}</repositories>
<dependencies>{dependency}<dependency><groupId>org.apache.commons</groupId>{commons}</dependency>
<dependency><groupId>junit</groupId>{junit}</dependency></dependencies></project>
"""
    return Project(
        "jvm",
        MavenRepository("/maven"),
        {".m2/settings.xml": f"<settings><mirrors>{mirror}</mirrors></settings>"},
        {**JAVA, "pom.xml": pom},
        "src/main/java/small/Small.java",
        # Quicker for a short build. -s, since a JVM takes the home folder from the list of users, which knows nothing
        # of the one of a test.
        'MAVEN_OPTS="$MAVEN_OPTS -XX:TieredStopAtLevel=1 -XX:+UseSerialGC" mvn -B -q -s $HOME/.m2/settings.xml test',
        flags=("--grant", "~/.m2/settings.xml"),
    )


Make = Callable[[int], Project]
each_toolchain = pytest.mark.parametrize(
    "make",
    [
        pytest.param(rust, marks=needs("cargo"), id="rust"),
        pytest.param(go, marks=needs("go"), id="go"),
        pytest.param(maven, marks=[needs("mvn"), needs_artifacts], id="jvm"),
    ],
)


@pytest.fixture(autouse=True)
def real_cargo(monkeypatch: pytest.MonkeyPatch) -> None:
    """rustup's cargo asks the home folder which one it is, and the tests have homes of their own."""
    found = subprocess.run(["sh", "-c", "rustup which cargo"], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        monkeypatch.setenv("PATH", f"{os.path.dirname(found.stdout.strip())}:{os.environ['PATH']}")


def stand_in(yard: Yard, registry: Registry, project: Project) -> tuple[str, ...]:
    """Its flags, with everything in place."""
    registry.files = project.served
    yard.write(project.home, below=yard.home)
    yard.write(project.files)
    return ("--toolchain", project.toolchain, *project.flags)


def mend(yard: Yard, project: Project) -> None:
    path = yard.project / project.wrong
    path.write_text(path.read_text().replace("41", "42"))


def fetched(registry: Registry) -> set[str]:
    """What was asked for but by skep itself, which reads where a cargo registry has its files."""
    return {path for path, _ in registry.asked} - {"/index/config.json"}


@pytest.mark.guarantee("net-toolchain")
@each_toolchain
def test_a_project_is_built_and_tested_with_its_users_registry_only(yard: Yard, registry: Registry, make: Make) -> None:
    project = make(registry.port)
    flags = stand_in(yard, registry, project)
    test = ("sh", "-ec", project.test)
    here = ("127.0.0.1", registry.port)

    refused = yard.exec(*test, flags=(*flags, "--deny", f"127.0.0.1:{registry.port}"))
    assert refused.returncode not in (0, 125) and fetched(registry) == set(), "its twin: a deny rule beats a toolchain"

    mend(yard, project)
    ok(yard.exec(*test, flags=flags))
    assert fetched(registry)
    assert yard.destinations("allowed") == {here} and yard.destinations("denied") == set()
    left = {str(path.relative_to(yard.home)) for path in yard.home.rglob("*") if path.is_file()}
    assert {path for path in left if not path.startswith(("project/", ".cache/skep/"))} == set(project.home)


@each_toolchain
def test_a_run_mends_a_project_whose_test_fails_and_its_patch_is_verified(
    yard: Yard, registry: Registry, make: Make
) -> None:
    project = make(registry.port)
    flags = stand_in(yard, registry, project)
    git(yard.project, "init", "-q")
    git(yard.project, "add", "-A")
    git(yard.project, "commit", "-qm", "base")
    place = f"127.0.0.1:{registry.port}"
    yard.write({"verify.toml": f'[verify]\nnetwork = ["{place}"]\n'}, below=yard.state)
    yard.write(
        {"worker.sh": f"if {project.test}; then exit 1; fi\nsed -i s/41/42/ {project.wrong}\n"},
        below=yard.state,
    )
    done = yard.outside(
        *(sys.executable, "-m", "skep_cli", "run", ".", "mend it", "--json", "--policy", f"{yard.state}/verify.toml"),
        *("--worker", f"sh {yard.state}/worker.sh", "--verify", f"sh -ec '{project.test}'", *flags),
    )
    run = json.loads(ok(done).splitlines()[-1])
    assert run["verification"]["outcome"] == "passed"
    assert run["files_changed"] == sorted([*project.made, project.wrong])
    assert [f"{entry['host']}:{entry['port']}" for entry in run["egress"]["allowed"]] == [place]
    assert run["egress"]["denied"] == []


@needs("mvn")
@needs_artifacts
def test_a_repository_that_only_the_project_names_is_denied_to_maven_and_told(yard: Yard, registry: Registry) -> None:
    other = f"<repository><id>other</id><url>https://{ELSEWHERE}/maven</url></repository>"
    missing = "<dependency><groupId>skep.test</groupId><artifactId>absent</artifactId><version>1</version></dependency>"
    project = maven(registry.port, mirrored="central", repositories=other, dependency=missing)
    flags = stand_in(yard, registry, project)
    done = yard.exec("sh", "-ec", project.test, flags=flags)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {host for host, _ in yard.destinations("denied")} == {ELSEWHERE}
    assert f"skep: denied {ELSEWHERE}" in done.stderr and f"--allow {ELSEWHERE}" in done.stderr
    assert yard.destinations("allowed") == {("127.0.0.1", registry.port)}


@needs("mvn", "gradle")
@needs_artifacts
def test_gradle_builds_and_tests_with_mavens_mirror_and_is_denied_another(yard: Yard, registry: Registry) -> None:
    project = maven(registry.port)
    flags = stand_in(yard, registry, project)
    dependencies = (
        f"    compile 'org.apache.commons:commons-lang3:{newest('org/apache/commons/commons-lang3')}'\n"
        f"    testCompile 'junit:junit:{newest('junit/junit')}'\n"
    )

    def build(url: str) -> str:
        return f"apply plugin: 'java'\nrepositories {{ maven {{ url '{url}' }} }}\ndependencies {{\n{dependencies}}}\n"

    yard.write({"build.gradle": build(f"https://{ELSEWHERE}/maven")})
    words = ("gradle", "test")  # by its daemon, which ends with the command
    denied = yard.exec(*words, flags=flags)
    assert denied.returncode == 1 and ELSEWHERE in denied.stdout + denied.stderr, denied.stdout + denied.stderr
    assert {host for host, _ in yard.destinations("denied")} == {ELSEWHERE}

    yard.write({"build.gradle": build(f"http://127.0.0.1:{registry.port}/maven")})
    mend(yard, project)
    ok(yard.exec(*words, flags=flags))
    assert 'tests="1" skipped="0" failures="0"' in next(yard.project.rglob("TEST-*.xml")).read_text()
    assert yard.destinations("allowed") == {("127.0.0.1", registry.port)} and yard.destinations("denied") == set()
