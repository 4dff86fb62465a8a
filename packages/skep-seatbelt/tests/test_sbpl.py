"""The printer writes what a reader of the language reads back, or refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_seatbelt.evaluate import Profile
from skep_seatbelt.reader import Symbol, UnreadableProfile, read
from skep_seatbelt.sbpl import (
    MAX_FILTERS,
    MAX_RULE_BYTES,
    All,
    Comment,
    Literal,
    Named,
    Not,
    Pattern,
    ProfileError,
    Rule,
    Socket,
    Subpath,
    print_profile,
)


def paths() -> st.SearchStrategy[str]:
    part = st.text(min_size=1).filter(lambda text: "/" not in text and text not in (".", ".."))
    return st.lists(part, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(paths())
def test_quoting_survives_any_path_or_refuses_it(path: str):
    try:
        text = print_profile([Rule("allow", ("file-write*",), (Literal(path),))])
    except ProfileError:
        assert any(ch < " " or ch == "\x7f" or "\ud800" <= ch <= "\udfff" for ch in path)
        return
    assert read(text)[1:] == [["allow", "file-write*", ["literal", path]]]
    text.encode()


@given(st.text())
def test_reading_any_text_ends_with_forms_or_a_refusal(text: str):
    try:
        read(text)
    except UnreadableProfile:
        pass


@pytest.mark.parametrize("path", ["a/b", "", "/a/../b", "/a/./b", "/a//b", "/a/", "/."])
def test_a_path_that_is_not_absolute_and_normal_is_refused(path: str):
    with pytest.raises(ProfileError, match="path"):
        print_profile([Rule("allow", ("file-read*",), (Subpath(path),))])
    assert '(subpath "/")' in print_profile([Rule("allow", ("file-read*",), (Subpath("/"),))])


@pytest.mark.parametrize("ch", ["\0", "\n", "\r", "\t", "\x1b", "\x7f", "\ud800"])
def test_a_control_character_is_refused_by_name(ch: str):
    with pytest.raises(ProfileError, match=r"control|UTF-8"):
        print_profile([Rule("deny", ("file-read*",), (Literal(f"/a{ch}b"),))])


def test_a_quote_cannot_end_a_string_early():
    text = print_profile([Rule("deny", ("file-read*",), (Literal('/a") (allow default) ("'),))])
    assert len(read(text)) == 2


def test_an_expression_with_a_quote_is_refused():
    with pytest.raises(ProfileError, match="expression"):
        print_profile([Rule("deny", ("file-read*",), (Pattern('^/a"b'),))])


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_refused(port: int):
    with pytest.raises(ProfileError, match="port"):
        print_profile([Rule("allow", ("network-outbound",), (Socket("remote", "localhost", port),))])


def test_a_message_marks_denials_and_not_allowances():
    rules = [Rule("deny", ("signal",)), Rule("allow", ("signal",), (Literal("/x"),))]
    text = print_profile(rules, message="tag")
    assert '(deny signal (with message "tag"))' in text
    assert text.count("message") == 1


def test_a_guarded_rule_is_void_where_the_operation_is_unknown():
    text = print_profile([Rule("allow", ("default",)), Rule("deny", ("file-clone",), guarded=True)])
    assert not Profile(text).allows("file-clone", "/x")
    assert Profile(text, unknown=frozenset({"file-clone"})).allows("signal")
    with pytest.raises(UnreadableProfile):
        Profile("(version 1)(deny file-clone)", unknown=frozenset({"file-clone"}))


def test_a_long_rule_is_split_and_means_the_same():
    many = [f"/r/{number:05d}{'x' * 100}" for number in range(1000)]
    text = print_profile([Rule("allow", ("file-write*",), tuple(map(Subpath, many)))])
    forms = read(text)
    assert len(forms) > 5
    assert all(len(chunk.encode()) < MAX_RULE_BYTES + 1024 for chunk in text.split("(allow file-write*"))
    assert all(Profile(text).allows("file-write-data", path) for path in (many[0], many[-1]))


def test_more_filters_than_macos_takes_are_refused_with_the_remedy():
    rule = Rule("deny", ("file-read*",), tuple(Subpath(f"/r/{number}") for number in range(MAX_FILTERS + 1)))
    with pytest.raises(ProfileError, match="name the folders above"):
        print_profile([rule])


def test_comments_are_plain_text():
    assert "; roots" in print_profile([Comment("roots")])
    for text in ("a\n(allow default)", "é"):
        with pytest.raises(ProfileError):
            print_profile([Comment(text)])


def test_filters_nest():
    rule = Rule("deny", ("file-read*",), (All((Subpath("/a"), Not(Literal("/a/b")))),))
    assert read(print_profile([rule]))[1] == [
        *("deny", "file-read*"),
        ["require-all", ["subpath", "/a"], ["require-not", ["literal", "/a/b"]]],
    ]


def test_strings_and_symbols_are_told_apart():
    form = read(print_profile([Rule("allow", ("mach-lookup",), (Named("global-name", "allow"),))]))[1]
    assert isinstance(form, list)
    assert isinstance(form[1], Symbol) and not isinstance(form[2][1], Symbol)
