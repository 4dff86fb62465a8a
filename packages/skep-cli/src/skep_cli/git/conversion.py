"""How git stores a file that it checks out as something else, learnt from one version of it in both forms. Pure.

Attributes are not asked: what they say may have come from a worker. Filters, which are programs, are never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Convert = Callable[[bytes], bytes]

_ENCODINGS = ("utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "utf-32-be", "utf-32", "latin-1", "cp1252", "shift_jis")
"""For `working-tree-encoding`. The ones that mark their own byte order come last of their kind."""
_IDENT = re.compile(rb"\$Id:[^$\n]*\$")


def to_stored(on_disk: bytes, stored: bytes) -> Convert | None:
    """What turned the one into the other: nothing, line endings, `ident`, an encoding, or several of them; None when it
    was something else.
    """
    for convert in _candidates():
        try:
            if convert(on_disk) == stored:
                return convert
        except UnicodeError:
            continue
    return None


def _candidates() -> Iterator[Convert]:
    yield lambda content: content
    yield _newlines
    yield _ident
    yield lambda content: _ident(_newlines(content))
    for encoding in _ENCODINGS:
        yield lambda content, encoding=encoding: content.decode(encoding).encode()
        yield lambda content, encoding=encoding: _newlines(content.decode(encoding).encode())


def _newlines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def _ident(content: bytes) -> bytes:
    return _IDENT.sub(b"$Id$", content)
