"""`skep exec` on a terminal, by itself and under a real interactive shell: as without skep."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from .escapes.worker import eventually, processes_with
from .ptys import SKEP, Terminal

pytestmark = pytest.mark.sandbox


@pytest.fixture
def folder() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix=".skep-terminal-", dir=Path.home()))
    (base / "home").mkdir()
    (base / "work").mkdir()
    yield base
    shutil.rmtree(base)


@pytest.fixture
def terminals(folder: Path) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


class Start(Protocol):
    def __call__(self, script: str, *flags: str, size: tuple[int, int] = (24, 80)) -> Terminal: ...


@pytest.fixture
def skep(folder: Path, terminals: list[Terminal]) -> Start:
    """Runs `skep exec FLAGS -- sh -c SCRIPT` on a terminal."""

    def start(script: str, *flags: str, size: tuple[int, int] = (24, 80)) -> Terminal:
        terminals.append(Terminal([SKEP, "exec", *flags, "--", "sh", "-c", script], folder, size))
        return terminals[-1]

    return start


@pytest.fixture
def bash(folder: Path, terminals: list[Terminal]) -> Terminal:
    """An interactive shell with job control."""
    path = shutil.which("bash")
    if path is None:
        pytest.skip("bash is not installed")
    terminals.append(Terminal([path, "--norc", "--noprofile", "-i"], folder))
    terminals[-1].expect("sh% ")
    return terminals[-1]


def test_a_typed_line_is_read_and_the_window_has_its_size(skep: Start) -> None:
    terminal = skep("test -t 0 && test -t 1 && test -t 2 && tty && stty size; read x; echo got $x", size=(33, 101))
    terminal.expect(r"/dev/\S+\n")
    terminal.expect("33 101\n")
    terminal.type("hello\n")
    terminal.expect("got hello")
    assert terminal.end() == 0


def test_a_resize_is_told_to_the_worker(skep: Start) -> None:
    terminal = skep("trap 'stty size; exit 4' WINCH; echo up; while :; do sleep 0.05; done")
    terminal.expect("up\n")
    terminal.resize(40, 99)
    terminal.expect("40 99\n")
    assert terminal.end() == 4


def test_ctrl_c_ends_the_worker_and_its_children_with_130(skep: Start) -> None:
    terminal = skep("echo up; (sleep 60; echo child lived) ; echo worker lived")
    terminal.expect("up\n")
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "lived" not in terminal.seen


def test_ctrl_c_may_be_handled_and_skep_stays(skep: Start) -> None:
    terminal = skep("trap 'echo caught' INT; echo up; read x; read x; echo got $x")
    terminal.expect("up\n")
    terminal.type("\x03")
    terminal.expect("caught\n")
    terminal.type("one\ntwo\n")
    terminal.expect("got ")
    assert terminal.end() == 0


def test_ctrl_backslash_is_a_quit(skep: Start) -> None:
    terminal = skep("echo up; exec sleep 60")
    terminal.expect("up\n")
    terminal.type("\x1c")
    assert terminal.end() == 131


def test_ctrl_z_stops_and_fg_continues(bash: Terminal) -> None:
    bash.type('"$SKEP" exec -- sh -c \'echo u""p; read x; echo got $x; exec sleep 60\'\n')
    bash.expect("up\n")
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.expect("sh% ")
    bash.type("echo shell $((40 + 2))\n")
    bash.expect("shell 42\n")
    bash.type("fg\n")
    bash.expect("fg\n.*read x.*\n")
    bash.type("hello\n")
    bash.expect("got hello\n")
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.type("fg\n")
    bash.expect("fg\n.*exec sleep 60'\n")
    bash.type("\x03")
    bash.expect("sh% ")
    bash.type("echo code $?\n")
    bash.expect("code 130\n")


EDITOR = """
import os, signal, time
def stop(number, frame):
    time.sleep(0.3)
    print("put back", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
signal.signal(signal.SIGTSTP, stop)
print("up", flush=True)
while True:
    signal.pause()
"""


def test_the_shell_gets_the_terminal_when_the_last_of_the_group_has_stopped(bash: Terminal, folder: Path) -> None:
    """An editor puts the terminal's modes back before it stops, and its parents stopped long before it."""
    (folder / "work/editor.py").write_text(EDITOR)
    bash.type('"$SKEP" exec -- python3 editor.py\n')
    bash.expect("up\n")
    bash.type("\x1a")
    bash.expect("put back\n(?s:.*)Stopped")
    bash.expect("sh% ")
    bash.type("fg\n")
    bash.expect("fg\n.*editor.py\n")
    bash.type("\x03")
    bash.expect("sh% ")
    bash.type("echo code $?\n")
    bash.expect("code 130\n")


def test_bg_lets_it_go_on_and_the_shell_keeps_the_terminal(bash: Terminal) -> None:
    bash.type('"$SKEP" exec -- sh -c \'echo u""p; sleep 1; sleep 1; echo do""ne > done; sleep 60\'\n')
    bash.expect("up\n")
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.type("bg\n")
    bash.expect("sh% ")
    bash.type("while ! test -e done; do sleep 0.1; done; echo wai''ted; kill %1; wait %1; echo code $?\n")
    bash.expect("waited\n")
    bash.expect("code 143\n")


@pytest.mark.parametrize(("trap", "code"), [("", 129), ("trap '' HUP; ", 137)])
def test_a_worker_that_wants_a_terminal_nobody_can_give_it_is_hung_up(bash: Terminal, trap: str, code: int) -> None:
    """In an orphaned process group no shell is told of a stop, and none will continue it."""
    script = f"{trap}while :; do read x < /dev/tty; done"
    bash.type(f'(sh -c \'"$SKEP" exec -- sh -c "$1"; echo $? > code\' - "{script}" &)\n')
    bash.type("while ! test -s code; do sleep 0.1; done; echo co''de $(cat code)\n")
    bash.expect(f"code {code}\n")


def test_pipelines_do_not_lose_the_terminal(bash: Terminal) -> None:
    bash.type('"$SKEP" exec -- seq 3 | cat; echo code $?\n')
    bash.expect("1\n2\n3\n")
    bash.expect("code 0\n")
    bash.type("echo in | \"$SKEP\" exec -- sh -c 'cat; read x < /dev/tty; echo got $x'\n")
    bash.expect("in\n")
    bash.type("typed\n")
    bash.expect("got typed\n")
    bash.type("\"$SKEP\" exec -- sh -c 'read x; echo got $x' | cat\n")
    bash.expect("cat\n")
    bash.type("again\n")
    bash.expect("got again\n")
    bash.type("echo shell $((40 + 2)); stty size\n")
    bash.expect("shell 42\n")
    bash.expect("24 80\n")


def test_ctrl_c_in_a_pipeline_ends_all_of_it(bash: Terminal) -> None:
    bash.type('"$SKEP" exec -- sh -c \'echo u""p; sleep 60\' | cat\n')
    bash.expect("up\n")
    bash.type("\x03")
    bash.expect("sh% ")
    bash.type("echo shell $((40 + 2))\n")
    bash.expect("shell 42\n")


def test_a_background_command_runs_without_taking_the_terminal(bash: Terminal) -> None:
    bash.type("\"$SKEP\" exec -- sh -c 'echo ran > ran; exit 5' & wait $!; echo code $?\n")
    bash.expect("code 5\n")
    bash.type("\"$SKEP\" exec -- sh -c 'read x; echo got $x' &\n")
    bash.type("while ! jobs | grep -q Stopped; do sleep 0.1; done; echo now''so\n")
    bash.expect("nowso")
    bash.type("fg\n")
    bash.expect("echo got")
    bash.type("later\n")
    bash.expect("got later\n")


def test_a_shell_inside_controls_jobs_of_its_own(bash: Terminal) -> None:
    bash.type('PS1="i""n% " "$SKEP" exec --env PS1 -- bash --norc --noprofile -i\n')
    bash.expect("in% ")
    bash.type("sleep 60\n")
    bash.expect("sleep 60\n")
    bash.wait_for_foreground("sleep")
    bash.type("\x1a")
    bash.expect("Stopped")
    bash.expect("in% ")
    bash.type("fg\n")
    bash.expect("sleep 60\n")
    bash.wait_for_foreground("sleep")
    bash.type("\x03")
    bash.expect("in% ")
    bash.type("exit 6\n")
    bash.expect("sh% ")
    bash.type("echo code $?\n")
    bash.expect("code 6\n")


FULL_SCREEN = """
import os, signal, sys, termios, tty
cooked = termios.tcgetattr(0)
def begin():
    tty.setraw(0)
    os.write(1, b"\\x1b[?1049h\\x1b[38;2;255;100;0mup \\xe2\\x97\\x8f\\x1b[0m")
def leave():
    os.write(1, b"\\x1b[?1049l")
    termios.tcsetattr(0, termios.TCSADRAIN, cooked)
def resized(*_):
    os.write(1, b"size %dx%d." % tuple(os.get_terminal_size()))
signal.signal(signal.SIGWINCH, resized)
begin()
while True:
    key = os.read(0, 64)
    if key == b"q":
        break
    if key == b"\\x1a":
        leave()
        os.kill(0, signal.SIGTSTP)
        begin()
        continue
    os.write(1, b"key " + key.hex().encode() + b".")
leave()
print("left")
"""
"""As agents and editors do: raw mode, another screen, keys one by one, Ctrl-Z by itself."""


def test_a_full_screen_program_has_keys_colours_sizes_and_stops_and_goes_on_by_itself(
    bash: Terminal, folder: Path
) -> None:
    (folder / "work/screen.py").write_text(FULL_SCREEN)
    assert eventually(lambda: not bash.modes() & termios.ICANON)
    before = bash.modes()
    bash.type('"$SKEP" exec -- python3 screen.py\n')
    bash.expect("\x1b\\[38;2;255;100;0mup \u25cf")
    assert not bash.modes() & (termios.ICANON | termios.ECHO | termios.ISIG)
    for key in ("x", "\x1b[A", "\x03", "\x1c", "\u00e4", "\t", "\r"):
        bash.type(key)
        bash.expect(rf"key {key.encode().hex()}\.")
    bash.resize(31, 97)
    bash.expect(r"size 97x31\.")
    for _ in range(2):
        bash.type("\x1a")
        bash.expect("Stopped")
        bash.expect("sh% ")
        bash.type("echo shell $((40 + 2))\n")
        bash.expect("shell 42\n")
        bash.resize(25, 60)
        bash.type("fg\n")
        bash.expect("up \u25cf")
        bash.type("y")
        bash.expect(r"key 79\.")
    bash.type("q")
    bash.expect("left\n")
    bash.expect("sh% ")
    bash.type("echo code $?\n")
    bash.expect("code 0\n")
    bash.expect("sh% ")
    assert eventually(lambda: bash.modes() == before)  # the shell sets its own before or after its prompt


@pytest.mark.parametrize("end", ["wall", "kill"])
def test_modes_and_the_terminal_come_back_when_the_worker_is_ended(bash: Terminal, end: str) -> None:
    before = bash.modes() & (termios.ICANON | termios.ECHO)
    inner = "bash --norc -ic \"stty raw -echo; echo u''p; sleep 600\""
    for wall in ("2s", "8s", "60s"):  # the first one that this machine is quick enough to begin in
        flags = f"--wall {wall}" if end == "wall" else ""
        bash.type(f"sh -c '\"$SKEP\" exec {flags} -- {inner}; read x; echo got $x'\n")
        bash.expect("got .*\n")
        if bash.expect("up|wall limit|in time")[0] == "up":
            break
        bash.type("again\n")
        bash.expect("got again")
        bash.expect("sh% ")
    if end == "kill":
        skep = skep_below(bash.pid)
        for child in Path(f"/proc/{skep}/task/{skep}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        bash.expect("sh% |$")
    else:
        bash.expect("wall limit")
    bash.type("typed\n")
    bash.expect("got typed")
    bash.expect("sh% ")
    assert bash.modes() & (termios.ICANON | termios.ECHO) == before or before == 0


@pytest.mark.guarantee("gone-processes")
@pytest.mark.parametrize("job", ["stopped", "stopped for reading", "in the foreground"])
def test_nothing_stays_when_the_terminal_and_its_shell_are_gone(bash: Terminal, job: str) -> None:
    tag = f"97{len(job)}{os.getpid()}"
    script = "read x; sleep TAG" if job == "stopped for reading" else 'echo u""p; sleep TAG'
    bash.type(f"\"$SKEP\" exec -- sh -c '{script.replace('TAG', tag)}'" + (" &\n" if "reading" in job else "\n"))
    if job == "stopped for reading":
        bash.expect("sh% ")
        bash.type("while ! jobs | grep -q Stopped; do sleep 0.1; done; echo now''so\n")
        bash.expect("nowso")
    else:
        bash.expect("up\n")
        if job == "stopped":
            bash.type("\x1a")
            bash.expect("Stopped")
    skep = skep_below(bash.pid)
    os.kill(bash.pid, signal.SIGKILL)
    os.waitpid(bash.pid, 0)
    os.close(bash.fd)
    bash.fd = os.open(os.devnull, os.O_RDONLY)
    assert eventually(lambda: not processes_with(tag)), processes_with(tag)
    assert eventually(lambda: not lives(skep))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def skep_below(pid: int) -> int:
    """The skep process among the descendants of a process."""
    todo = [pid]
    while todo:
        one = todo.pop()
        words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        if SKEP.encode() in words and b"exec" in words:
            return one
        todo += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    raise AssertionError("no skep there")
