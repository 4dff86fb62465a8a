"""The short parser of `skep exec` is a subset of click's: what it takes, click takes the same way."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from skep_cli.cli import cli
from skep_cli.flags import POLICY_FLAGS, REPORT_FLAG, Flag, Flags, parse_simple
from skep_cli.options import collect, policy_flags
from skep_cli.policies import unset_lines
from skep_cli.refusals import flag_of
from skep_policy.errors import PolicyError
from skep_policy.facts import Facts
from skep_policy.written import as_policy

TABLE = (*POLICY_FLAGS, REPORT_FLAG)


def parse_with_click(words: list[str]) -> tuple[Flags, list[str]] | None:
    """What `skep exec` of click makes of the words; None for a usage error."""
    found: list[tuple[Flags, list[str]]] = []

    @click.command()
    @policy_flags()
    @click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
    def exec_(command: tuple[str, ...], **values: Any) -> None:
        found.append((collect(values), list(command)))

    result = CliRunner().invoke(exec_, words)
    return found[0] if result.exit_code == 0 and found else None


def test_a_variable_that_is_to_be_passed_and_is_not_set_is_told() -> None:
    facts = Facts("/home/u", "u", 1, 1, "/", {"THERE": ""})
    lines = unset_lines(Flags(env=["THERE", "GONE", "MADE=x", "LC_*"]), facts)
    assert lines == ["--env GONE: it is not set here, so nothing is passed; --env GONE=VALUE sets it"]


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
words = st.one_of(
    st.sampled_from([flag.name for flag in TABLE]),
    st.builds("{}={}".format, st.sampled_from([flag.name for flag in TABLE]), texts),
    st.sampled_from(["--", "-", "--help", "--nope", "-h", "true", "3", "-3", "--al"]),
    texts,
)


@given(st.lists(words, max_size=8))
def test_what_the_short_parser_takes_click_takes_the_same_way(typed: list[str]) -> None:
    simple = parse_simple(typed, TABLE)
    if simple is not None:
        assert simple == parse_with_click(typed)


@pytest.mark.parametrize("flag", TABLE, ids=[flag.name for flag in TABLE])
def test_every_flag_is_taken_by_the_short_parser(flag: Flag) -> None:
    value = "3" if flag.kind == "number" else "x"
    typed = [flag.name] if flag.kind == "switch" else [flag.name, value]
    simple = parse_simple([*typed, "--", "true"], TABLE)
    assert simple is not None and simple == parse_with_click([*typed, "--", "true"])
    assert getattr(simple[0], flag.field) in (True, "x", ["x"], 3)


@pytest.mark.parametrize(
    "typed",
    [["--help"], ["true"], ["--allow"], ["--nope", "--", "true"], ["--processes", "many", "--", "true"], ["--"], []],
    ids=" ".join,
)
def test_everything_else_is_left_to_click(typed: list[str]) -> None:
    assert parse_simple(typed, TABLE) is None


def test_flags_are_a_layer_and_a_value_that_cannot_be_used_is_refused() -> None:
    policy = as_policy(Flags(allow=["a.example.com"], env=["A", "B=x y", "C="], git=True, wall="30m").written())
    assert policy.network.allow == ("a.example.com",)
    assert policy.env.pass_ == ("A",) and policy.env.set == {"B": "x y", "C": ""}
    assert policy.filesystem.git is True and policy.limits.wall == "30m"
    with pytest.raises(PolicyError, match="http://a"):
        Flags(allow=["http://a"]).written()


@pytest.mark.parametrize("flag", [flag for flag in TABLE if flag.key], ids=lambda flag: flag.name)
def test_a_value_of_a_flag_is_told_by_the_name_of_the_flag(flag: Flag) -> None:
    good = {"DOMAIN": "a.example.com", "PATH": "/dev/x", "NAME[=VALUE]": "A", "TIME": "9s", "SIZE": "9MiB"}
    typed = [flag.name] if flag.kind == "switch" else [flag.name, good.get(flag.metavar, "3")]
    simple = parse_simple([*typed, "--", "true"], TABLE)
    assert simple is not None
    said = simple[0].written()
    assert [flag_of(key) for key in (*said.lists, *said.values)] == [flag.name]


@pytest.mark.parametrize("empty", ["--allow", "--write", "--env", "--wall", "--memory", "--file-size"])
def test_an_empty_value_is_refused_and_not_taken_for_none(empty: str) -> None:
    simple = parse_simple([f"{empty}=", "--", "true"], TABLE)
    assert simple is not None
    with pytest.raises(PolicyError):
        simple[0].written()


@pytest.mark.parametrize(("typed", "hint"), [("exce", "; did you mean exec?"), ("zzz", "")])
def test_a_command_that_is_none_is_a_usage_error_with_the_nearest(typed: str, hint: str) -> None:
    result = CliRunner().invoke(cli, [typed])
    assert (result.exit_code, result.output) == (2, f"skep: no such command {typed!r}{hint}; see `cli --help`\n")
