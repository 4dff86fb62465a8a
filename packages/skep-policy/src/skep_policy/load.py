"""A policy file becomes a `Policy`, or one line that says which file, line and key is wrong and what would be right."""

from __future__ import annotations

import os
import stat

import msgspec

from .checks import check
from .errors import PolicyError
from .places import Path, dotted, lines_of
from .policy import Policy

MAX_FILE = 16 << 20
"""Bytes read of a policy file. A list of 100,000 domains is 3 MiB; more is not a policy."""

_TYPES = {
    "object": "a table",
    "array": 'a list of strings, like ["..."]',
    "str": "a string",
    "int": "a whole number",
    "bool": "true or false",
    "null": "nothing",
    "float": "a number",
    "datetime": "a date",
    "date": "a date",
    "time": "a time",
}

_EXAMPLES: dict[str | int, str] = {"wall": "30m", "memory": "8GiB", "file-size": "1GiB", "max-bytes-out": "50MiB"}
"""Of what looks like a number and is written with its unit."""


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy of a TOML file. Raises PolicyError when it cannot be read, parsed or used."""
    source = os.fspath(path)
    return parse_policy(read_text(source), source=source)


def parse_policy(text: str, *, source: str) -> Policy:
    """The policy of a TOML text; `source` is what errors call it. Raises PolicyError."""
    import tomllib  # a run without a policy file does not need it

    text = text.removeprefix("\ufeff")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, line = _decode_error(str(error), text)
        raise PolicyError(f"not TOML: {problem}", source=source, line=line) from None
    except RecursionError:
        raise PolicyError("not a policy: nested too deeply", source=source) from None
    try:
        policy = msgspec.convert(data, Policy)
    except msgspec.ValidationError as error:
        path, problem = _validation_error(str(error), data)
        raise _placed(PolicyError(problem), path, text, source) from None
    try:
        check(policy)
    except PolicyError as error:
        raise _placed(error, _parse_path(error.key or ""), text, source) from None
    return policy


def read_text(source: str) -> str:
    """The text of a policy file. Raises PolicyError for what is absent, no regular file, too big or not UTF-8."""
    try:
        data = _read(source)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PolicyError(f"cannot be read: {reason}", source=source) from None
    if len(data) > MAX_FILE:
        raise PolicyError(f"more than {MAX_FILE >> 20} MiB; a policy is smaller", source=source)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError("not UTF-8; save the file as UTF-8", source=source, line=line) from None


def _read(source: str) -> bytes:
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise ValueError(f"it is {what}; name a TOML file")
        parts: list[bytes] = []
        left = MAX_FILE + 1
        while left and (part := os.read(fd, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def place_of(error: PolicyError, *, source: str, path: Path) -> PolicyError:
    """The same error with file, line and key of what stands at `path`; without the line when `source` is no file."""
    try:
        return _placed(error, path, read_text(source), source)
    except PolicyError:
        return error.at(source=source, key=dotted(path))


def _placed(error: PolicyError, path: Path, text: str, source: str) -> PolicyError:
    lines = lines_of(text.replace("\r\n", "\n"))
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    return PolicyError(error.problem, source=source, line=line, key=dotted(path) or None)


def _decode_error(message: str, text: str) -> tuple[str, int]:
    """The parser's message without its place, and the line of it."""
    problem, _, place = message.rpartition(" (at ")
    if place.startswith("line "):
        return problem, int(place[5:].partition(",")[0])
    return problem or message, text.rstrip().count("\n") + 1


def _validation_error(message: str, data: object) -> tuple[Path, str]:
    """The path and a sentence for what msgspec says: "Expected `str`, got `int` - at `$.network.allow[2]`"."""
    problem, _, place = message.rpartition(" - at ")
    if not problem:
        problem, place = message, "`$`"
    path = _parse_path(place.strip("`").removeprefix("$").lstrip("."))
    words = problem.split("`")
    if problem.startswith("Object contains unknown field"):
        return (*path, words[1]), _unknown_key(path, words[1])
    if path and path[-1] == "...":
        path = _first_wrong_value(path[:-1], data)
    if problem.startswith("Expected") and len(words) >= 4:
        expected = " or ".join(_TYPES.get(word, word) for word in words[1].split(" | ") if word != "null")
        if path[-1] in _EXAMPLES:
            expected += f', like "{_EXAMPLES[path[-1]]}"'
        return path, f"expected {expected}, got {_TYPES.get(words[3], words[3]).partition(',')[0]}"
    if problem.startswith("Invalid enum value"):
        return path, f"{problem[len('Invalid enum value ') :]} is none of the values; write {_choices(path)}"
    return path, problem


def _unknown_key(path: Path, key: str) -> str:
    fields = _fields(path)
    from difflib import get_close_matches

    if close := get_close_matches(key.replace("_", "-"), fields, n=1):
        return f'unknown key; did you mean "{close[0]}"?'
    for table in _fields(()):
        if key in _fields((table,)):
            return f"unknown key; it belongs in [{table}]"
    return f"unknown key; {'the tables are' if not path else 'known here:'} {', '.join(fields)}"


def _fields(path: Path) -> list[str]:
    """The keys of a table of the policy, empty when the path leads to no table."""
    struct: type[msgspec.Struct] = Policy
    for part in path:
        names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
        value = getattr(struct(), names.get(str(part), ""), None)
        if not isinstance(value, msgspec.Struct):
            return []
        struct = type(value)
    return list(struct.__struct_encode_fields__)


def _choices(path: Path) -> str:
    """The values of the two keys that have a closed set of them."""
    return {"read": '"host" or "minimal"', "sni": '"match" or "off"'}.get(str(path[-1]) if path else "", "another")


def _first_wrong_value(path: Path, data: object) -> Path:
    """The key of a table of strings whose value is none; msgspec does not say which."""
    for part in path:
        data = data[part]  # type: ignore[index]  # the path is from the validator, so it leads through tables
    if isinstance(data, dict):
        for key, value in data.items():  # type: ignore[reportUnknownVariableType]
            if not isinstance(value, str):
                return (*path, str(key))  # type: ignore[reportUnknownArgumentType]
    return path


def _parse_path(text: str) -> Path:
    """`network.allow[2]` as a path; a quoted key may hold dots and brackets."""
    path: list[str | int] = []
    while text:
        if text[0] == "[":
            index, _, text = text[1:].partition("]")
            path.append(int(index) if index.isdigit() else index)
        elif text[0] == '"':
            end = text.rindex('"')
            path.append(text[1:end])
            text = text[end + 1 :]
        else:
            end = min((i for i in (text.find("."), text.find("[")) if i >= 0), default=len(text))
            path.append(text[:end])
            text = text[end:]
        text = text.removeprefix(".")
    return tuple(path)
