"""Rows of a terminal as text: whatever a worker writes stays within its rows, and is nothing but characters."""

from __future__ import annotations

import unicodedata
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from skep_cli.screen import fold
from skep_cli.screen.fold import cells, folded
from skep_cli.screen.view import MARK, Lines, Moment, clock, fit, row, shown

rows = partial(fold.rows, mark=MARK)


def width(text: str) -> int:
    return sum(map(cells, text))


@given(st.lists(st.binary(max_size=60), max_size=8), st.integers(20, 90))
def test_no_output_leaves_its_rows_or_holds_a_command_to_the_terminal(blocks: list[bytes], columns: int) -> None:
    lines = Lines()
    told = [line for block in blocks for line in lines.feed(block)] + lines.end()
    assert len(told) == b"".join(blocks).count(b"\n") + (not b"".join(blocks).endswith(b"\n") and any(blocks))
    for piece in (piece for line in told for piece in rows(line, columns)):
        assert piece.startswith(MARK) and width(piece) <= columns
        assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in piece)


def test_rows_end_with_whole_words_where_they_have_any() -> None:
    assert list(rows("one two three", 9)) == [MARK + "one two", MARK + "three"]
    assert list(rows("one two three", 6)) == [MARK + "one", MARK + "two", MARK + "thre", MARK + "e"]
    assert list(rows("    indented", 8)) == [MARK + "    in", MARK + "dented"]
    assert list(rows("a b  c", 3)) == [MARK + "a", MARK + "b", MARK + " ", MARK + "c"]


@given(st.text(alphabet="ab ", max_size=80), st.integers(3, 20))
def test_rows_lose_nothing_but_a_space_each(line: str, columns: int) -> None:
    shown = [piece.removeprefix(MARK) for piece in rows(line, columns)]
    at = 0
    for piece in shown:
        at += line[at : at + 1] == " " and not line.startswith(piece, at)
        assert line.startswith(piece, at)
        at += len(piece)
    assert not line[at:].strip()
    assert len(line) - sum(map(len, shown)) < len(shown)


@given(st.text(max_size=120), st.integers(20, 90))
def test_the_live_row_never_fills_the_last_column(last: str, columns: int) -> None:
    moment = Moment("worker", 5000.0, 3, 1, shown(last.encode(errors="replace").replace(b"\n", b" ")))
    assert width(row(moment, columns)) < columns and "\n" not in row(moment, columns)


def test_lines_come_in_any_pieces_and_what_was_written_over_is_gone() -> None:
    lines = Lines()
    assert lines.feed(b"10%\r20%") == [] and lines.unfinished == "20%"
    assert lines.feed(b"\r\n\xc3") == ["20%"] and lines.feed(b"\xa9\nx") == ["é"] and lines.last == "x"
    assert lines.end() == ["x"] and lines.end() == [] and lines.last == "x"
    assert lines.feed(b"x" * 200_000) == ["x" * 65536] * 3


def test_wide_and_empty_characters_are_counted_as_they_are_shown() -> None:
    assert list(rows("漢字漢字", 7)) == [MARK + "漢字", MARK + "漢字"] and width("e\u0301") == 1
    assert fit("漢字漢字", 5) == "漢字…" and fit("abc", 3) == "abc" and fit("abcd", 3) == "ab…"
    assert shown(b"\x1b[31mred\x1b[0m\x1b[2J\tx") == "red\\x1b[2J x" and clock(3661) == "1:01:01"


@given(st.text(alphabet="ab` ", max_size=120), st.integers(6, 40))
def test_a_folded_line_keeps_its_words_and_a_row_is_longer_only_by_a_word_that_is(line: str, columns: int) -> None:
    said = folded(line, columns)
    assert said.split() == line.split() and folded(line, None) == line
    for row_ in said.split("\n"):
        assert width(row_) <= columns or row_.count("`") >= 2 or len(row_.split()) <= 1


def test_what_is_to_be_copied_stays_in_one_row() -> None:
    assert folded("skep: no state: `mkdir -p a b` makes one", 24) == "skep: no state:\n  `mkdir -p a b` makes\n  one"
    assert folded("    a word and more words", 14) == "    a word and\n    more words"
