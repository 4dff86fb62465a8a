"""Text on its way to a terminal."""

from __future__ import annotations

import io
import re
import sys
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from skep_cli.screen.render import Live, Page, count, one_line, table, visible

SGR = re.compile(r"\x1b\[[0-9;:]*m")


@given(st.text() | st.binary().map(lambda raw: raw.decode(errors="surrogateescape")))
def test_visible_text_holds_nothing_a_terminal_acts_on(text: str) -> None:
    shown = visible(text)
    assert all(char in "\n\t" or ord(char) >= 0x20 for char in shown)
    assert not any(
        0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF or 0x202A <= ord(char) <= 0x202E for char in shown
    )
    shown.encode("utf-8")


def test_no_character_of_a_kind_that_is_not_seen_stays() -> None:
    unseen = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    every = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) in unseen]
    assert [char for char in every if visible(char) == char] == ["\t", "\n"]


def test_escapes_say_what_was_there() -> None:
    assert visible("a\x1b[31mb\x00\x7f\x9b") == r"a\x1b[31mb\x00\x7f\x9b"
    assert visible("\udcff\u202e\u200b") == r"\xff\u{202e}\u{200b}"
    assert visible("ünï 日本 🐝\tx\n") == "ünï 日本 🐝\tx\n"


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\tc") == "a⏎b c" and len(one_line("x" * 500)) == 200


@given(st.binary(max_size=200), st.lists(st.integers(1, 7)))
def test_a_live_stream_is_the_same_in_any_pieces_and_commands_nothing_but_colours(data: bytes, cuts: list[int]) -> None:
    whole = Live()
    expected = whole.feed(data) + whole.end()
    pieces, at, out = Live(), 0, ""
    for cut in [*cuts, len(data)]:
        out += pieces.feed(data[at : at + cut])
        at += cut
    assert out + pieces.feed(data[at:]) + pieces.end() == expected
    assert "\x1b" not in SGR.sub("", expected)


def test_colours_and_progress_bars_pass_and_the_rest_is_shown() -> None:
    live = Live()
    assert live.feed(b"\x1b[1;31mred\x1b[0m 10%\r20%\n") == "\x1b[1;31mred\x1b[0m 10%\r20%\n"
    assert live.feed(b"\x1b]0;t\x07\x1b[2J") == r"\x1b]0;t\x07\x1b[2J"
    assert live.feed(b"\xc3") == "" and live.feed(b"\xa9\x1b[3") == "é" and live.feed(b"1mx") == "\x1b[31mx"


def test_colours_are_for_terminals() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = io.StringIO(), Terminal()
    for stream in (plain, terminal):
        Page(stream).line("x\x1b", "red")
    assert plain.getvalue() == "x\\x1b\n"
    assert terminal.getvalue().startswith("\x1b[31mx\\x1b\x1b[0m\n")


def test_a_page_can_be_written_to_a_stream_without_unicode() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    Page(stream).line("ünï \udcff")
    stream.flush()
    assert b"\\xff" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_table_is_aligned_and_counts_agree_with_their_nouns() -> None:
    assert table([("a", "b"), ("longer", "x\ny")], ("ONE", "TWO")) == ["ONE     TWO", "a       b", "longer  x⏎y"]
    assert [count(number, "file") for number in (0, 1, 1234)] == ["0 files", "1 file", "1,234 files"]
