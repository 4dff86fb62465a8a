"""`skep run` on a terminal: a live row that is skep's own, the worker's lines marked as the worker's, and no terminal
for the worker.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .ptys import SKEP, Terminal

pytestmark = pytest.mark.sandbox

ERASE = "\x1b[2K"
MODES = re.compile(r"\x1b\[(?:[0-9;]*m|\?7[hl])")
"""Colours, and whether long rows go on in the next."""


@pytest.fixture
def folder() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix=".skep-run-terminal-", dir=Path.home()))
    for name in ("home", "work"):
        (base / name).mkdir()
    subprocess.run(["git", "init", "-q", str(base / "work")], check=True)
    (base / "work/f").write_text("f\n")
    yield base
    shutil.rmtree(base)


class Shown:
    """All that came to the terminal."""

    def __init__(self, folder: Path, script: str, *flags: str, term: str = "xterm", columns: int = 60) -> None:
        (folder / "work/w.sh").write_text(script)
        words = [SKEP, "run", ".", "t", "--worker", "sh w.sh", *flags]
        self.terminal = Terminal(words, folder, (24, columns), term)
        self.columns = columns

    def all(self) -> str:
        text = self.terminal.seen
        while True:
            try:
                block = os.read(self.terminal.fd, 65536)
            except OSError:
                break
            if not block:
                break
            text += block.decode(errors="replace")
        self.status = self.terminal.end()
        self.terminal.close()
        return text

    def screen(self) -> list[str]:
        """What a person sees in the end: rows, with what was erased gone."""
        rows = [MODES.sub("", row) for row in self.all().replace("\r\n", "\n").split("\n")]
        return [row.split(ERASE)[-1].replace("\r", "") for row in rows]


def test_a_live_row_tells_phase_time_and_requests_and_is_gone_in_the_end(folder: Path) -> None:
    script = "printf working; curl -s http://not-listed.example/ > /dev/null; "
    wait = "while ! test -e $SKEP_RESULTS/seen; do sleep 0.05; done; echo; echo done"
    shown = Shown(folder, script + wait, "--results", str(folder / "results"), columns=100)
    found = shown.terminal.expect(r"(?s).*skep: worker \d:(?!00)\d\d  requests: 0 allowed, 1 denied  \u2502 working")
    (folder / "results/seen").touch()
    text = found[0] + shown.all()
    assert "skep: preparing 0:00" in text and "\u2502 done\r\n" in text
    shown = Shown(folder, script)
    rows = shown.screen()
    assert not any(row.startswith(("skep: worker", "skep: patch")) for row in rows), rows
    assert shown.status == 0


def test_what_the_worker_writes_is_marked_and_can_be_nothing_else(folder: Path) -> None:
    script = (
        "printf '\\033[2K\\rskep: run x: verification passed\\n';"
        "printf '\\033]0;title\\007\\033[1A\\033[31mred\\033[0m\\n';"
        "printf '%0200dskep: forged\\n' 0; printf 'a\\rb\\n';"
        "mkfifo \"$(printf 'x%0100d\\nskep: forged' 0)\"; printf 'no end'"
    )
    shown = Shown(folder, script)
    text = shown.all()
    assert "\x1b]0;" not in text and "\x1b[1A" not in text and "\x1b[31mred" not in text
    plain = MODES.sub("", text)
    for row in re.split(r"\n|\x1b\[2K", plain.replace("\r", "")):
        assert len(row) <= shown.columns, row
        ours = row[:2] != "\u2502 " and row[:6] != "      "  # a row of skep's own, and not one that goes on
        assert not ours or not re.search("forged|passed|red|title|no end", row[: shown.columns // 3]), row
    assert "\u2502 \\x1b]0;title\\x07\\x1b[1Ared" in plain
    assert "\u2502 b\r\n" in plain and "\u2502 no end\r\n" in plain


def rows_of(text: str, columns: int) -> list[str]:
    """The rows of a terminal that shows an emoji (a character and U+FE0F) in two cells."""
    rows, column, wraps = [""], 0, True
    text = re.sub(r"\x1b\[[0-9;]*m", "", text.replace(ERASE, "").replace("\r\n", "\n"))
    for found in re.finditer("\x1b\\[\\?7(?P<mode>[hl])|.\ufe0f|.|\n", text):
        token = found[0]
        if found["mode"]:
            wraps = found["mode"] == "h"
        elif token in "\r\n":
            rows += [""] if token == "\n" else []
            column = 0
        else:
            if column + len(token) > columns:
                if not wraps:
                    continue
                rows.append("")
                column = 0
            rows[-1] += token
            column += len(token)
    return rows


def test_what_is_wider_than_we_think_still_makes_no_row_without_a_mark(folder: Path) -> None:
    shown = Shown(folder, "printf '\\342\\230\\201\\357\\270\\217%.0s' $(seq 29); echo 'skep: run x: forged'")
    text = shown.all()
    assert any("forged" in row for row in rows_of(text, 1000))  # where there is room for it
    assert not any(row.startswith("skep: run x") for row in rows_of(text, shown.columns))
    without = text.replace("\x1b[?7l", "").replace("\x1b[?7h", "")
    assert any(row.startswith("skep: run x: forged") for row in rows_of(without, shown.columns))


def test_the_worker_of_a_run_has_no_terminal_while_that_of_exec_has(folder: Path) -> None:
    script = "(echo forged > /dev/tty) 2>/dev/null && echo has one || echo has none"
    assert "forged" not in (text := Shown(folder, script).all()) and "\u2502 has none" in text
    terminal = Terminal([SKEP, "exec", "--", "sh", "w.sh"], folder)
    terminal.expect("forged")
    terminal.expect("has one")
    terminal.close()


@pytest.mark.parametrize("how", ["quiet", "dumb"])
def test_without_a_live_row_nothing_is_ever_erased(folder: Path, how: str) -> None:
    flags, term = (("--quiet",), "xterm") if how == "quiet" else ((), "dumb")
    shown = Shown(folder, "echo said", *flags, term=term)
    text = shown.all()
    assert ERASE not in text and ("said" in text) is (how == "dumb")
    (log,) = (folder / "home/.local/state/skep/runs").glob("*/worker.log")
    assert log.read_text() == "said\n"


def test_the_document_stands_alone_on_the_last_row(folder: Path) -> None:
    text = Shown(folder, "echo said", "--json").all()
    last = text.rstrip("\r\n").split("\n")[-1].split(ERASE)[-1]
    assert json.loads(last)["state"] == "completed" and "\u2502 said" in text
