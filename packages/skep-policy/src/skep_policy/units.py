"""Durations and sizes, as people write them. A number without a unit is refused: it would be read in two ways."""

from __future__ import annotations

from .errors import PolicyError

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}

_BYTES = {
    "b": 1,
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{prefix: 1024**power for power, prefix in enumerate("kmgt", 1)},  # as docker, systemd and ulimit read them
}

MAX_SECONDS = 366 * 86400
"""A year and a day: what is longer is a typing error, and poll() would overflow."""

MAX_BYTES = 1 << 60
"""An exbibyte: what is more does not fit the signed 64 bits of a kernel limit with room to spare."""

MAX_TEXT = 40
"""Characters of a duration or size that is taken for one."""

_DIGITS = frozenset("0123456789")


def parse_duration(text: str) -> float:
    """Seconds of "30m", "90s", "1h30m", "1.5h", "500ms", "2d": more than 0, at most a year. Raises PolicyError."""
    total = 0.0
    rest = text if len(text) <= MAX_TEXT else ""
    while rest:
        number, unit, rest = _split(rest)
        if number is None or unit not in _SECONDS:
            raise PolicyError(f'not a duration: {text!r}; write a number and a unit, like "90s", "30m" or "1h30m"')
        total += number * _SECONDS[unit]
    if not 0 < total <= MAX_SECONDS:
        raise PolicyError(f'a duration must be more than 0 and at most a year: {text!r}; write one like "30m"')
    return total


def parse_size(text: str) -> int:
    """Bytes of "8GiB", "50MB", "512K", "1.5G", "4096B". `K`, `M`, `G`, `T` alone are binary. Raises PolicyError."""
    number, unit, rest = _split(text[: MAX_TEXT + 1])
    if number is None or rest or unit.lower() not in _BYTES:
        raise PolicyError(f'not a size: {text!r}; write a number and a unit, like "512MiB", "8GiB" or "10GB"')
    size = int(number * _BYTES[unit.lower()])
    if not 0 < size <= MAX_BYTES:
        raise PolicyError(f'a size must be at least a byte and at most 1024PiB: {text!r}; write one like "8GiB"')
    return size


def _split(text: str) -> tuple[float | None, str, str]:
    """(number, unit, rest) of the first number with its unit; a number of None when there is none."""
    end = 0
    while end < len(text) and (text[end] in _DIGITS or text[end] == "."):
        end += 1
    stop = end
    while stop < len(text) and text[stop].isascii() and text[stop].isalpha():
        stop += 1
    digits = text[:end]
    whole, dot, part = digits.partition(".")
    valid = whole and len(digits) <= 18 and "." not in part and (part or not dot)
    return float(digits) if valid else None, text[end:stop], text[stop:]
