"""A policy file is a policy, or one line with the file, the line and the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import Policy, PolicyError, load_policy, parse_policy
from skep_policy.places import dotted, lines_of

WHOLE = """\
[filesystem]
write   = ["~/.cache/uv"]          # besides the workspace
protect = ["deploy/"]
hide    = ["~/work/secrets", "**/*.pem"]
grant   = ["~/.config/gh"]
read    = "host"
git     = false
devices = ["/dev/kvm"]
sockets = ["/run/postgresql/.s.PGSQL.5432"]

[network]
allow = ["api.github.com", "*.example.com", "github.com:22", "localhost:11434", "10.1.0.0/16:443"]
deny  = ["evil.example.com"]
private = ["db.internal"]
sni = "match"
max-bytes-out = "50MiB"

[env]
pass = ["ANTHROPIC_API_KEY", "LC_*"]
set  = { CI = "1" }

[limits]
wall = "30m"
memory = "8GiB"
processes = 1024
file-size = "10GiB"

[worker]
command = ["codex", "exec", "{task}"]
verify  = ["uv", "run", "pytest", "-q"]
toolchains = ["python"]

[verify]
network = ["localhost:5432"]
"""


def refused(text: str) -> PolicyError:
    with pytest.raises(PolicyError) as error:
        parse_policy(text, source="p.toml")
    assert str(error.value).startswith("p.toml") and str(error.value).isprintable()
    return error.value


def test_a_whole_policy_is_read() -> None:
    policy = parse_policy(WHOLE, source="p.toml")
    assert policy.network.allow[0] == "api.github.com" and policy.limits.processes == 1024
    assert policy.env.pass_ == ("ANTHROPIC_API_KEY", "LC_*") and policy.env.set == {"CI": "1"}
    assert policy.filesystem.git is False and policy.worker.verify == ("uv", "run", "pytest", "-q")


@pytest.mark.parametrize("text", ["", "# nothing\n", "[network]\n", "\ufeff[network]\r\nallow = []\r\n"])
def test_an_empty_policy_says_nothing(text: str) -> None:
    assert parse_policy(text, source="p.toml") == Policy()


WRONG = [
    ("[network]\nallowed = []\n", 2, "network.allowed", 'did you mean "allow"'),
    ("[network]\nmax_bytes_out = '1B'\n", 2, "network.max_bytes_out", 'did you mean "max-bytes-out"'),
    ("[netwrok]\n", 1, "netwrok", 'did you mean "network"'),
    ("\n\nallow = []\n", 3, "allow", "it belongs in [network]"),
    ("[env]\nwall = '1m'\n", 2, "env.wall", "it belongs in [limits]"),
    ("[filesystem]\nx = 1\n", 2, "filesystem.x", "write, protect, hide"),
    ("network = 3\n", 1, "network", "expected a table, got a whole number"),
    ("[filesystem]\nwrite = 'x'\n", 2, "filesystem.write", "expected a list of strings"),
    ("[network]\nallow = [\n  'a.com',\n  3,\n]\n", 4, "network.allow[1]", "expected a string, got a whole number"),
    ("[network]\nallow = [['a']]\n", 2, "network.allow[0]", "expected a string"),
    ("[env.set]\nA = '1'\nB = 2\n", 3, "env.set.B", "expected a string, got a whole number"),
    ("[env]\nset = {A = '1', B = true}\n", 2, "env.set.B", "expected a string, got true or false"),
    ("[limits]\nprocesses = '5'\n", 2, "limits.processes", "expected a whole number, got a string"),
    ("[limits]\nprocesses = 5.0\n", 2, "limits.processes", "expected a whole number, got a number"),
    ("[filesystem]\ngit = 1\n", 2, "filesystem.git", "expected true or false, got a whole number"),
    ("[limits]\nwall = 2020-01-01\n", 2, "limits.wall", 'expected a string, like "30m", got a date'),
    ("[limits]\nmemory = 8\n", 2, "limits.memory", 'expected a string, like "8GiB", got a whole number'),
    ("[network]\nmax-bytes-out = 8\n", 2, "network.max-bytes-out", 'expected a string, like "50MiB", got'),
    ("[network]\nsni = 'on'\n", 2, "network.sni", '"match" or "off"'),
    ("[filesystem]\nread = 'all'\n", 2, "filesystem.read", '"host" or "minimal"'),
    ("[network]\nallow = ['a.com', '*.com']\n", 2, "network.allow[1]", '"*.example.com"'),
    ("[network]\nallow = [\n# b\n'a.com', '*.com']\n", 4, "network.allow[1]", "*.com"),
    ("[network]\ndeny = ['http://a.com/']\n", 2, "network.deny[0]", '"a.com"'),
    ("[network]\nprivate = ['a.com:80']\n", 2, "network.private[0]", '"a.com"'),
    ("[verify]\nnetwork = ['a b']\n", 2, "verify.network[0]", "a b"),
    ("[limits]\nwall = '30'\n", 2, "limits.wall", "30m"),
    ("[limits]\nmemory = 'lots'\n", 2, "limits.memory", "8GiB"),
    ("[limits]\nprocesses = 0\n", 2, "limits.processes", "at least 1"),
    ("[limits]\nprocesses = -1\n", 2, "limits.processes", "at least 1"),
    ("[network]\nmax-bytes-out = '-1MiB'\n", 2, "network.max-bytes-out", "8GiB"),
    ("[filesystem]\nwrite = ['a', '']\n", 2, "filesystem.write[1]", "empty"),
    ("[filesystem]\nwrite = ['*.log']\n", 2, "filesystem.write[0]", "pattern"),
    ('[filesystem]\nhide = ["a\\u0000b"]\n', 2, "filesystem.hide[0]", "NUL"),
    ("[filesystem]\nprotect = ['~bob/x']\n", 2, "filesystem.protect[0]", "~/"),
    ("[filesystem]\nhide = ['$HOME/x']\n", 2, "filesystem.hide[0]", "~/"),
    ("[filesystem]\nwrite = ['${HOME}/x']\n", 2, "filesystem.write[0]", "./${HOME}/x"),
    ("[filesystem]\ndevices = ['kvm']\n", 2, "filesystem.devices[0]", "/dev/kvm"),
    ("[filesystem]\ndevices = ['/dev/../etc']\n", 2, "filesystem.devices[0]", "/dev/kvm"),
    ("[env]\npass = ['A=1']\n", 2, "env.pass[0]", "env.set"),
    ("[env]\npass = ['A B']\n", 2, "env.pass[0]", "environment variable"),
    ("[env.set]\n'A.B' = '1'\n", 2, 'env.set."A.B"', "environment variable"),
    ('[env.set]\nA = "1\\u0000"\n', 2, "env.set.A", "NUL"),
    ("[worker]\ncommand = []\n", 2, "worker.command", "empty"),
    ("[worker]\npreset = ' '\n", 2, "worker.preset", "empty"),
    ("[network\n", 1, None, "not TOML"),
    ("[network]\nallow = ['a\n", 2, None, "not TOML"),
    ("a = 1\na = 2\n", 2, None, "not TOML"),
    ("a = ", 1, None, "not TOML"),
    ("network.allow = ['a.com']\n\nnetwork.deny = [1]\n", 3, "network.deny[0]", "expected a string"),
    ('[network]\nallow = ["""\na.com""", "b.com", 7]\n', 3, "network.allow[2]", "expected a string"),
    ("[network]\nallow = ['''x''',\n'#]', # ]\n'*.com']\n", 3, "network.allow[1]", "#]"),
    ("[[network]]\nallow = []\n", 1, "network", "expected a table, got a list"),
    ('"\\u001b[31m" = 1\n', 1, '"\\x1b[31m"', "unknown key"),
]


@pytest.mark.parametrize(("text", "line", "key", "says"), WRONG, ids=[ascii(case[0][:40]) for case in WRONG])
def test_a_wrong_policy_is_refused_at_its_place(text: str, line: int, key: str | None, says: str) -> None:
    error = refused(text)
    assert error.line == line
    assert key is None or f": {key}: " in str(error)
    assert says in str(error)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "{a=" * 3000])
def test_nesting_without_end_is_refused(text: str) -> None:
    refused(text)


# Lines, for any way of writing the same thing

COMMENTS = st.sampled_from(["", " # note", " # ['] \" [", "\t"])
NOISE = st.lists(st.sampled_from(["", "# [network]", "   ", "#allow = [1]"]), max_size=3)
QUOTED = st.sampled_from(["'{}'", '"{}"', "'''{}'''", '"""{}"""'])
STRINGS = st.sampled_from(["a.com", "x#y", "[z]", "a=b", "''", "\\\\"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, int]:
    """A text whose `network.allow` holds a number, and the line it is on. Only types are checked before it is found."""
    lines: list[str] = []
    lines += draw(NOISE)
    if draw(st.booleans()):
        lines += ["[env]" + draw(COMMENTS), "set = { A = 'x', 'B' = \"}\" }", *draw(NOISE)]
    dots = draw(
        st.sampled_from(
            ["[network]\nallow = [", '[ network ]\n"allow"=[', "network.allow = [", "network . 'allow' = ["]
        )
    )
    if not dots.lstrip().startswith("[") and "[env]" in "".join(lines):
        dots = "[network]\nallow = ["
    lines += dots.split("\n")
    for _ in range(draw(st.integers(0, 4))):
        lines[-1] += draw(QUOTED).format(draw(STRINGS).replace("'", "").replace('"', "")) + ","
        lines[-1] += draw(COMMENTS)
        lines += ["", *draw(NOISE)]
    if "#" in lines[-1]:
        lines.append("")
    lines[-1] += " 17,"
    line = len(lines)
    lines += draw(NOISE)
    lines += ["]", *draw(NOISE)]
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    return ending.join(lines), line


@given(documents())
def test_the_line_is_right_however_it_is_written(document: tuple[str, int]) -> None:
    text, line = document
    error = refused(text)
    assert "expected a string, got a whole number" in str(error)
    assert error.line == line


@given(st.text(alphabet="[]{}\"'=.,# \n\r\tabc1-_\\", max_size=40))
def test_any_text_is_a_policy_or_one_line(text: str) -> None:
    try:
        parse_policy(text, source="p.toml")
    except PolicyError as error:
        assert str(error).isprintable() and error.line is not None  # noqa: PT017


@given(st.text(alphabet="[]{}\"'=.,# \n\tabc1-_\\", max_size=60))
def test_every_key_of_any_toml_has_a_line(text: str) -> None:
    """The scan need not judge, but it must find in valid text what the parser found."""
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = lines_of(text)

    def walk(value: object, path: tuple[str | int, ...]) -> None:
        assert not path or 1 <= lines[path] <= text.count("\n") + 1, dotted(path)
        if isinstance(value, dict):
            for key, inner in cast("dict[str, object]", value).items():
                walk(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(cast("list[object]", value)):
                walk(inner, (*path, index))

    walk(data, ())


# Files


def test_a_file_is_loaded_and_named_in_errors(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(WHOLE)
    bad.write_text("[network]\nallow = ['*.com']\n")
    assert load_policy(good) == parse_policy(WHOLE, source="x")
    with pytest.raises(PolicyError) as error:
        load_policy(bad)
    assert str(error.value).startswith(f"{bad}:2: network.allow[0]: ")


def test_what_is_no_readable_text_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# ok\n# caf\xe9\n")
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    cases = {
        tmp_path: "folder",
        tmp_path / "absent.toml": "No such file",
        tmp_path / "latin.toml": "UTF-8",
        tmp_path / "pipe.toml": "not a regular file",
        tmp_path / "loop.toml": "symbolic links",
        "/dev/zero": "not a regular file",
        tmp_path / ("x" * 300): "too long",
        "nul\0": "null",
        "": "No such file",
    }
    for path, says in cases.items():
        with pytest.raises(PolicyError) as error:
            load_policy(path)
        assert says in str(error.value) and str(error.value).isprintable(), path
    with pytest.raises(PolicyError) as error:
        load_policy(tmp_path / "latin.toml")
    assert error.value.line == 2


def test_an_unreadable_file_is_one_clear_line(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (tmp_path / "p.toml").touch(0o000)
    with pytest.raises(PolicyError, match="Permission denied"):
        load_policy(tmp_path / "p.toml")


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep_policy.load.MAX_FILE", 100)
    (tmp_path / "p.toml").write_text("#" * 101)
    with pytest.raises(PolicyError, match="a policy is smaller"):
        load_policy(tmp_path / "p.toml")


def test_a_long_list_of_domains_loads(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        "[network]\nallow = [\n" + "".join(f'"h{i}.example.com",\n' for i in range(20_000)) + "]\n"
    )
    assert len(load_policy(tmp_path / "p.toml").network.allow) == 20_000
