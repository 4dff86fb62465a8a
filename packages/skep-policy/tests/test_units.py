"""Durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_policy import PolicyError, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), ("2d", 172800), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 << 30),
        ("50MiB", 50 << 20),
        ("10GB", 10**10),
        ("512K", 512 << 10),
        ("8g", 8 << 30),
        ("1.5GiB", 3 << 29),
        ("4096B", 4096),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


BAD = [
    "",
    " ",
    "30",
    "m",
    "-1m",
    "+1m",
    "1 m",
    "1m ",
    "1m30",
    "1..5h",
    ".5h",
    "5.h",
    "1e3s",
    "0s",
    "٣s",
    "1x",
    "nan",
    "inf",
]


@pytest.mark.parametrize("text", [*BAD, "999999d", "1m" * 400_000])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PolicyError, match="30m"):
        parse_duration(text)


@pytest.mark.parametrize("text", [*BAD, "1.5", "8GiB8", "0B", "0.1B", "9999999TiB", "8 GiB", "1GiB1MiB"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PolicyError, match="8GiB"):
        parse_size(text)


@given(st.text(alphabet="0123456789.msdhKMGTiB -", max_size=12))
def test_no_text_breaks_them(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            assert parse(text) > 0
        except PolicyError:
            continue
