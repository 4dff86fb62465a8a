"""Layers: who overrules whom, where each value came from, and that an untrusted layer only ever narrows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skep_policy import Boundary, Effective, Layer, Policy, PolicyError, built_in, merge, parse_policy, resolve
from skep_policy.layers import BUILT_IN
from skep_policy.policy import Env, Filesystem, Limits, Network, Setup, Verify, Worker
from skep_policy.units import parse_duration, parse_size

from .world import World


def layer(text: str, source: str = "user", *, trusted: bool = True, base: str | None = None) -> Layer:
    return Layer(source, parse_policy(text, source=source), trusted=trusted, base=base)


def project(text: str) -> Layer:
    return layer(text, "project", trusted=False, base="/repo")


def withheld(effective: Effective) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in effective.withheld]


def test_nothing_is_the_built_in_defaults() -> None:
    effective = merge([])
    assert effective == merge([built_in()])
    assert {entry.source for entry in effective.entries} == {BUILT_IN}
    assert effective.policy.filesystem.read == "host" and effective.policy.filesystem.git is False
    assert effective.policy.network == Network(sni="match") and effective.rules().mode == "none"
    assert "PATH" in effective.policy.env.pass_ and not any("TOKEN" in name for name in effective.policy.env.pass_)


def test_lists_add_up_and_keep_their_sources() -> None:
    effective = merge(
        [layer("[network]\nallow = ['a.com', 'b.com']"), layer("[network]\nallow = ['b.com', 'c.com']", "flags")]
    )
    assert effective.policy.network.allow == ("a.com", "b.com", "c.com")
    assert [(entry.value, entry.source) for entry in effective.of("network.allow")] == [
        *(("a.com", "user"), ("b.com", "user"), ("c.com", "flags"))
    ]
    assert effective.rules().decide("c.com", 443).source == "flags"


def test_the_rules_take_their_settings_from_the_policy() -> None:
    text = "[network]\nallow = ['a.com']\nprivate = ['a.com']\nsni = 'off'\nmax-bytes-out = '1KiB'"
    rules = merge([layer(text)]).rules()
    assert (rules.sni, rules.max_bytes_out, rules.private[0].text) == ("off", 1024, "a.com")
    assert (merge([]).rules().sni, merge([]).rules().max_bytes_out) == ("match", None)
    verify = merge([layer(text + "\n[verify]\nnetwork = ['b.com']")]).verify_rules()
    assert (verify.sni, verify.max_bytes_out, verify.private[0].text) == ("off", None, "a.com")


def test_of_values_the_last_layer_has_it() -> None:
    effective = merge([layer("[limits]\nwall = '1m'\nmemory = '1GiB'"), layer("[limits]\nwall = '2m'", "flags")])
    assert (effective.policy.limits.wall, effective.policy.limits.memory) == ("2m", "1GiB")
    assert (effective.source("limits.wall"), effective.source("limits.memory")) == ("flags", "user")
    assert effective.source("limits.processes") == BUILT_IN


def test_variables_are_set_one_by_one() -> None:
    effective = merge([layer("[env.set]\nA = '1'\nB = '1'"), layer("[env.set]\nB = '2'", "flags")])
    assert effective.policy.env.set == {"A": "1", "B": "2"}
    assert effective.source("env.set.A") == "user" and effective.source("env.set.B") == "flags"


def test_relative_paths_are_joined_to_the_base_of_their_layer() -> None:
    text = "[filesystem]\nwrite = ['a', '/b', '~/c', './d']"
    assert merge([layer(text, base="/x/")]).policy.filesystem.write == ("/x/a", "/b", "~/c", "/x/d")
    assert merge([layer(text)]).policy.filesystem.write == ("a", "/b", "~/c", "./d")


WIDENING = [
    ("[filesystem]\nwrite = ['/x']", "filesystem.write", "/x"),
    ("[filesystem]\ngrant = ['~/.ssh']", "filesystem.grant", "~/.ssh"),
    ("[filesystem]\ndevices = ['/dev/kvm']", "filesystem.devices", "/dev/kvm"),
    ("[filesystem]\nsockets = ['/run/s']", "filesystem.sockets", "/run/s"),
    ("[filesystem]\ngit = true", "filesystem.git", "true"),
    ("[filesystem]\nread = 'host'", "filesystem.read", "host"),
    ("[network]\nallow = ['a.com']", "network.allow", "a.com"),
    ("[network]\nprivate = ['a.com']", "network.private", "a.com"),
    ("[network]\nsni = 'off'", "network.sni", "off"),
    ("[network]\nmax-bytes-out = '2MiB'", "network.max-bytes-out", "2MiB"),
    ("[env]\npass = ['TOKEN']", "env.pass", "TOKEN"),
    ("[env.set]\nPATH = 'x'", "env.set.PATH", "x"),
    ("[limits]\nwall = '2h'", "limits.wall", "2h"),
    ("[limits]\nmemory = '2GiB'", "limits.memory", "2GiB"),
    ("[limits]\nprocesses = 2000", "limits.processes", "2000"),
    ("[limits]\nfile-size = '2GiB'", "limits.file-size", "2GiB"),
    ("[limits]\ndisk-free = '511MiB'", "limits.disk-free", "511MiB"),
    ("[worker]\ncommand = ['sh', '-c']", "worker.command", "sh -c"),
    ("[worker]\npreset = 'codex'", "worker.preset", "codex"),
    ("[worker]\nverify = ['true']", "worker.verify", "true"),
    ("[worker]\ntoolchains = ['node']", "worker.toolchains", "node"),
    ("[worker]\nsetup = ['npm ci']", "worker.setup", "npm ci"),
    ("[setup]\nnetwork = ['a.com']", "setup.network", "a.com"),
    ("[setup]\ntoolchains = ['node']", "setup.toolchains", "node"),
    ("[verify]\nnetwork = ['a.com']", "verify.network", "a.com"),
]
BASE = """
[filesystem]
read = "minimal"
[network]
max-bytes-out = "1MiB"
[limits]
wall = "1h"
memory = "1GiB"
processes = 1000
file-size = "1GiB"
disk-free = "1GiB"
"""


@pytest.mark.parametrize(("text", "key", "value"), WIDENING, ids=[case[1] for case in WIDENING])
def test_what_widens_is_withheld_and_listed_until_it_is_trusted(text: str, key: str, value: str) -> None:
    effective = merge([layer(BASE), project(text)])
    assert withheld(effective) == [(key, value)]
    assert effective.withheld[0].source == "project"
    assert effective.policy == merge([layer(BASE)]).policy
    trusted = merge([layer(BASE), layer(text, "project", base="/repo")])
    assert trusted.withheld == () and trusted.policy != effective.policy


def test_every_key_of_the_policy_is_withheld_or_narrows() -> None:
    """A key added to the policy has to be put on one of the two lists."""
    keys = {entry for _, entry, _ in WIDENING} | {"filesystem.protect", "filesystem.hide", "network.deny"}
    keys = {key if not key.startswith("env.set.") else "env.set" for key in keys}
    tables = {
        "filesystem": Filesystem,
        "network": Network,
        "env": Env,
        "limits": Limits,
        "worker": Worker,
        "verify": Verify,
        "setup": Setup,
    }
    assert tuple(tables) == Policy.__struct_encode_fields__
    assert keys == {f"{table}.{key}" for table, struct in tables.items() for key in struct.__struct_encode_fields__}


NARROWING = [
    ("[filesystem]\nprotect = ['x']", "filesystem.protect", "x"),
    ("[filesystem]\nhide = ['x']", "filesystem.hide", "x"),
    ("[filesystem]\nread = 'minimal'", "filesystem.read", "minimal"),
    ("[filesystem]\ngit = false", "filesystem.git", "false"),
    ("[network]\ndeny = ['a.com']", "network.deny", "a.com"),
    ("[network]\nsni = 'match'", "network.sni", "match"),
    ("[network]\nmax-bytes-out = '1KiB'", "network.max-bytes-out", "1KiB"),
    ("[limits]\nwall = '90s'", "limits.wall", "90s"),
    ("[limits]\nmemory = '1023MiB'", "limits.memory", "1023MiB"),
    ("[limits]\nprocesses = 999", "limits.processes", "999"),
    ("[limits]\nfile-size = '1B'", "limits.file-size", "1B"),
    ("[limits]\ndisk-free = '2GiB'", "limits.disk-free", "2GiB"),
]
LOOSE = BASE.replace("minimal", "host") + "\n[x]\n".replace("[x]\n", "")


@pytest.mark.parametrize(("text", "key", "value"), NARROWING, ids=[case[1] for case in NARROWING])
@pytest.mark.parametrize("user", ["", LOOSE + "[worker]\n", "[filesystem]\ngit = true\n[network]\nsni = 'off'"])
def test_what_narrows_counts_at_once(text: str, key: str, value: str, user: str) -> None:
    effective = merge([layer(user), project(text)])
    assert effective.withheld == ()
    if key not in ("filesystem.git", "network.sni") or "git" in user:
        assert [(entry.value, entry.source) for entry in effective.of(key)] == [(value, "project")]


def test_a_limit_where_there_was_none_is_narrower() -> None:
    effective = merge([project("[limits]\nwall = '300d'\n[network]\nmax-bytes-out = '500GiB'")])
    assert effective.policy.limits.wall == "300d" and effective.withheld == ()


def test_less_that_is_to_be_left_of_a_disk_than_is_built_in_is_wider() -> None:
    assert withheld(merge([project("[limits]\ndisk-free = '511MiB'")])) == [("limits.disk-free", "511MiB")]
    assert merge([project("[limits]\ndisk-free = '513MiB'")]).policy.limits.disk_free == "513MiB"
    assert merge([layer("[limits]\ndisk-free = '1B'"), project("[limits]\ndisk-free = '2B'")]).withheld == ()


def test_limits_are_compared_by_what_they_mean() -> None:
    assert merge([layer("[limits]\nwall = '1h'"), project("[limits]\nwall = '59m'")]).policy.limits.wall == "59m"
    assert withheld(merge([layer("[limits]\nwall = '1h'"), project("[limits]\nwall = '61m'")])) == [
        ("limits.wall", "61m")
    ]


def test_what_another_layer_says_too_is_not_withheld() -> None:
    text = "[network]\nallow = ['a.com']\n[filesystem]\ngit = true\nwrite = ['/x/']"
    assert merge([layer(text), project(text)]).withheld == ()
    assert merge([project(text), layer(text, "flags")]).withheld == ()


def test_flags_overrule_the_project() -> None:
    effective = merge([project("[limits]\nwall = '1m'"), layer("[limits]\nwall = '1h'", "flags")])
    assert effective.policy.limits.wall == "1h"


def test_a_deny_of_the_project_beats_an_allow_of_the_flags() -> None:
    effective = merge(
        [project("[network]\ndeny = ['a.example.com']"), layer("[network]\nallow = ['*.example.com']", "flags")]
    )
    assert not effective.rules().decide("a.example.com", 443).allow
    assert effective.rules().decide("b.example.com", 443).allow


def test_the_verification_reaches_what_is_listed_for_it_and_nothing_else() -> None:
    text = "[network]\nallow = ['a.com']\ndeny = ['c.com']\n[verify]\nnetwork = ['b.com', 'c.com']"
    rules = merge([layer(text)]).verify_rules()
    assert [rules.decide(host, 443).allow for host in ("a.com", "b.com", "c.com")] == [False, True, False]


def test_a_limit_that_cannot_be_compared_is_refused_with_its_source() -> None:
    bad = Layer("project", Policy(limits=Limits(wall="soon")), trusted=False)
    with pytest.raises(PolicyError, match=r"project: limits\.wall"):
        merge([layer("[limits]\nwall = '1h'"), bad])


# For random policies: what is let through with an untrusted layer is let through without it.

HOSTS = ["a.test", "b.test", "x.a.test", "10.0.0.1", "127.0.0.1", "localhost", "::1"]
RULES = st.lists(
    st.sampled_from([*HOSTS[:-1], "*.test", "*", "*:22", "a.test:22", "10.0.0.0/8:*", "localhost:22"]), max_size=3
)
PATHS = [
    "repo",
    "repo/a",
    "repo/a/b",
    "repo/.vscode",
    "repo/.git",
    "data",
    "data/x",
    ".ssh",
    ".ssh/key",
    ".aws",
    "other",
]
WRITTEN = st.lists(st.sampled_from([f"~/{path}" for path in PATHS] + ["~", "a", ".", "../data"]), max_size=2).map(tuple)
NAMES = st.sampled_from(["repo/a", "repo/a/b", "data", "data/x", ".ssh", "repo/.vscode"]).map(lambda name: f"~/{name}")


READS: st.SearchStrategy[Literal["host", "minimal"] | None] = st.sampled_from([None, "host", "minimal"])
SNIS: st.SearchStrategy[Literal["match", "off"] | None] = st.sampled_from([None, "match", "off"])
T = TypeVar("T")


def maybe(*values: T) -> st.SearchStrategy[T | None]:
    return st.sampled_from([None, *values])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    files = Filesystem(
        write=draw(st.lists(NAMES, max_size=1).map(tuple)),
        protect=draw(WRITTEN),
        hide=draw(WRITTEN),
        grant=draw(WRITTEN),
        read=draw(READS),
        git=draw(maybe(True, False)),
        devices=draw(st.sampled_from([(), ("/dev/null",), ("/dev/zero",)])),
    )
    network = Network(
        allow=tuple(draw(RULES)),
        deny=tuple(draw(RULES)),
        private=tuple(draw(st.lists(st.sampled_from(["a.test", "*.a.test", "*"]), max_size=1))),
        sni=draw(SNIS),
        max_bytes_out=draw(maybe("1KiB", "1MiB")),
    )
    env = Env(
        draw(st.lists(st.sampled_from(["A", "B", "*"]), max_size=2).map(tuple)),
        draw(st.dictionaries(NAMES_OF_ENV, VALUES)),
    )
    limits = Limits(
        draw(maybe("1m", "1h")), draw(maybe("1GiB", "2GiB")), draw(maybe(10, 20)), draw(maybe("1B", "1KiB"))
    )
    worker = Worker(command=draw(maybe(("x",))), toolchains=draw(st.sampled_from([(), ("node",)])))
    return Policy(files, network, env, limits, worker, Verify(tuple(draw(RULES))))


NAMES_OF_ENV = st.sampled_from(["A", "PATH"])
VALUES = st.sampled_from(["1", "2"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("layers").resolve())
    world.add(
        {
            f"home/{path}": "x" if "/" in path and path not in ("repo/a", "repo/.vscode", "repo/.git") else None
            for path in PATHS
        }
    )
    world.add(
        {"home/repo/.git/config": "", "home/repo/.git/HEAD": "ref: refs/heads/main", "home/repo/.vscode/tasks": "x"}
    )
    return world


def bounded(effective: Effective, world: World) -> Boundary | None:
    try:
        return resolve(effective, facts=world.facts(A="1", B="2", C="3"))
    except PolicyError:
        return None


LOOKED = [
    *PATHS,
    "",
    "repo/new",
    "repo/.git/config",
    "repo/.git/index",
    "repo/.vscode/tasks",
    "data/new",
    ".ssh/new",
    "/etc",
    "/usr/x",
]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(user=policies(), untrusted=policies(), flags=policies())
def test_an_untrusted_layer_never_widens(shared: World, user: Policy, untrusted: Policy, flags: Policy) -> None:
    base = str(shared.repo)
    first, last = Layer("user", user, base=base), Layer("flags", flags, base=base)
    with_it = merge([first, Layer("project", untrusted, trusted=False, base=base), last])
    without = merge([first, last])
    narrow, wide = bounded(with_it, shared), bounded(without, shared)
    if narrow is None:
        return  # refused: nothing runs at all
    assert wide is not None, "an untrusted layer made a refused policy usable"
    for path in LOOKED:
        target = path if path.startswith("/") else f"{shared.home}/{path}".rstrip("/")
        assert narrow.access_to(target) <= wide.access_to(target), path
    assert set(narrow.devices) <= set(wide.devices) and set(narrow.sockets) <= set(wide.sockets)
    assert set(narrow.env.items()) - {("PATH", narrow.env["PATH"])} <= set(wide.env.items())
    assert set(narrow.env["PATH"].split(":")) <= set(wide.env["PATH"].split(":"))
    assert_rules_narrow(with_it, without)
    assert_values_narrow(with_it, without, flags)


def assert_rules_narrow(with_it: Effective, without: Effective) -> None:
    for narrow, wide in ((with_it.rules(), without.rules()), (with_it.verify_rules(), without.verify_rules())):
        for host in HOSTS:
            for port in (22, 443):
                verdict, other = narrow.decide(host, port), wide.decide(host, port)
                assert other.allow or not verdict.allow
                for ip in ("8.8.8.8", "10.0.0.1", "127.0.0.1"):
                    assert wide.check_address(other, ip).allow or not narrow.check_address(verdict, ip).allow
        assert wide.mode == "open" or narrow.mode != "open"


def kept(text: str) -> int:
    return -parse_size(text)


def assert_values_narrow(with_it: Effective, without: Effective, flags: Policy) -> None:
    """Where the flags say nothing, what the project says counts only if it is less."""
    narrow, wide = with_it.policy, without.policy
    assert (narrow.worker, narrow.verify) == (wide.worker, wide.verify)
    if flags.network.sni is None:
        assert narrow.network.sni == "match" or wide.network.sni == "off"
    measured = [
        (narrow.network.max_bytes_out, wide.network.max_bytes_out, parse_size),
        (narrow.limits.wall, wide.limits.wall, parse_duration),
        (narrow.limits.memory, wide.limits.memory, parse_size),
        (narrow.limits.file_size, wide.limits.file_size, parse_size),
        (narrow.limits.processes, wide.limits.processes, int),
        (narrow.limits.disk_free, wide.limits.disk_free, kept),
    ]
    for less, more, measure in measured:
        assert more is None or (less is not None and measure(str(less)) <= measure(str(more)))


def test_the_property_would_notice(shared: World, tmp_path: Path) -> None:
    """The comparison above is not vacuous: a trusted layer with the same content does widen."""
    wide = resolve(merge([layer("[filesystem]\nwrite = ['~/data']")]), facts=shared.facts())
    narrow = resolve(merge([project("[filesystem]\nwrite = ['~/data']")]), facts=shared.facts())
    assert wide.access_to(f"{shared.home}/data/x") > narrow.access_to(f"{shared.home}/data/x")
