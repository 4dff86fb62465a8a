"""On which line each key and each element of a TOML text stands.

The TOML parser gives values without positions. This scan runs only when there is an error to place, over text the
parser has accepted, so it need not judge: it walks keys, strings, arrays and tables and notes where each begins.
"""

from __future__ import annotations

from bisect import bisect_right

Path = tuple[str | int, ...]

_SPACE = frozenset(" \t\r\n")
_KEY_END = frozenset(" \t.=]")
_SCALAR_END = frozenset(",]}\n#")


def lines_of(text: str) -> dict[Path, int]:
    """The line, from 1, of every key (`("network", "allow")`) and array element (`("network", "allow", 2)`)."""
    scan = _Scan(text)
    scan.document()
    return scan.lines


def dotted(path: Path) -> str:
    """`network.allow[2]`, with quotes round a key that needs them in TOML."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            bare = part and part.isascii() and part.replace("-", "").replace("_", "").isalnum()
            parts.append(("." if parts else "") + (part if bare else f'"{part}"'))
    return "".join(parts)


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._starts = [0, *(i + 1 for i, char in enumerate(text) if char == "\n")]
        self._tables: dict[Path, int] = {}

    def document(self) -> None:
        table: Path = ()
        while self._skip(comments=True):
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text[self.at] == "[":
                table = self._header(1)
            else:
                self._pair(table)

    def _header(self, brackets: int) -> Path:
        start = self.at
        self.at += brackets
        path: list[str | int] = []
        keys = self._keys()
        for position, key in enumerate(keys):
            path.append(key)
            table = tuple(path)
            if brackets == 2 and position == len(keys) - 1:
                self._tables[table] = self._tables.get(table, -1) + 1
            if table in self._tables:
                path.append(self._tables[table])
        self.at += brackets
        self._note(tuple(path), start)
        return tuple(path)

    def _pair(self, table: Path) -> None:
        start = self.at
        path = table + tuple(self._keys())
        self._note(path, start)
        self._skip()
        self.at += 1  # the equals sign
        self._value(path)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip()
            start = self.at
            if self.text[start] in "\"'":
                self._string()
                keys.append(_unquote(self.text[start : self.at]))
            else:
                while self.text[self.at] not in _KEY_END:
                    self.at += 1
                keys.append(self.text[start : self.at])
            self._skip()
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def _value(self, path: Path) -> None:
        self._skip()
        match self.text[self.at]:
            case '"' | "'":
                self._string()
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case _:
                while self.at < len(self.text) and self.text[self.at] not in _SCALAR_END:
                    self.at += 1

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip(comments=True) and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self._skip(comments=True) and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
            else:
                self._pair(path)
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        end = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(end)
        while not self.text.startswith(end, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(end)
        while len(end) == 3 and self.text.startswith(
            quote, self.at
        ):  # up to two quotes may stand before the last three
            self.at += 1

    def _skip(self, *, comments: bool = False) -> bool:
        """Move to the next character that matters; False at the end of the text."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "#" and comments:
                newline = self.text.find("\n", self.at)
                self.at = len(self.text) if newline < 0 else newline
            elif char in _SPACE:
                self.at += 1
            else:
                return True
        return False

    def _note(self, path: Path, at: int) -> None:
        line = bisect_right(self._starts, at)
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)


def _unquote(raw: str) -> str:
    import tomllib

    return tomllib.loads(f"key = {raw}")["key"]
