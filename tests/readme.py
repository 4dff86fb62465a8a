"""Code blocks of our documents.

A comment on the line above a fence says what becomes of the block; one without it is read by people only.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """`mark` is the text of the comment above the fence or "", `language` the word behind it, `line` where it opens."""

    mark: str
    language: str
    text: str
    line: int


def code_blocks(document: Path) -> list[Block]:
    """Every fenced block, in order."""
    blocks: list[Block] = []
    lines = document.read_text().splitlines()
    opened: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number
            continue
        above = re.fullmatch("<!-- (.*) -->", lines[opened - 1]) if opened else None
        text = "\n".join(lines[opened + 1 : number]) + "\n"
        blocks.append(Block(above[1] if above else "", lines[opened].strip("`"), text, opened + 1))
        opened = None
    assert opened is None, f"{document}:{opened}: the code block is not closed"
    return blocks
