"""A terminal, the macOS way: the command has one of its own, joined to the user's, which is as before at the end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

import pytest

from tests.escapes.worker import eventually

from .stage import Machine

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has the real one: pytest -m macos")


# What leads the session, as a shell does: the terminal of a leader that is gone is hung up.
LEADER = 'exec 3<&0; "$@" <&3 & echo $! > "$PIDFILE"; wait $!; code=$?; test $code != 137 || sleep 600; exit $code'


class Screen:
    """The far side of a terminal on which skep was started, in the foreground of a session that is not its own."""

    def __init__(self, machine: Machine, *words: str, **streams: Any) -> None:
        self.near, user = os.openpty()
        self.user = user
        self.before = termios.tcgetattr(user)
        self.name = os.ttyname(user)
        self.seen = b""

        def lead() -> None:
            os.setsid()
            os.close(os.open(self.name, os.O_RDWR))  # the first one opened is the controlling terminal

        given: dict[str, Any] = {"stdin": user, "stdout": user, "stderr": user, **streams}
        self.pidfile = machine.base / "pid"
        self.leader = subprocess.Popen(
            ["sh", "-c", LEADER, "sh", *machine.argv("exec", "--", *words)],
            cwd=machine.work,
            env={**machine.environ(), "PIDFILE": str(self.pidfile)},
            preexec_fn=lead,
            **given,
        )

    def type(self, keys: bytes) -> None:
        os.write(self.near, keys)

    def shows(self, words: bytes) -> bool:
        def look() -> bool:
            while select.select([self.near], [], [], 0)[0]:
                self.seen += os.read(self.near, 4096)
            return words in self.seen

        return eventually(look)

    def close(self) -> None:
        self.leader.kill()
        self.leader.wait()
        os.close(self.near)
        os.close(self.user)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def is_raw(screen: Screen) -> bool:
    return not termios.tcgetattr(screen.user)[3] & termios.ICANON


def test_the_command_has_a_terminal_of_its_own_and_keys_reach_it(machine: Machine, screens: list[Screen]) -> None:
    screen = Screen(machine, "sh", "-c", "tty; read word; echo got $word; test -t 2 && echo three")
    screens.append(screen)
    assert screen.shows(b"/dev/pts/") and screen.name.encode() not in screen.seen
    screen.type(b"hello\r")
    assert screen.shows(b"got hello") and screen.shows(b"three")
    assert screen.leader.wait(60) == 0
    assert termios.tcgetattr(screen.user) == screen.before


def test_ctrl_c_reaches_the_command_as_from_its_terminal(machine: Machine, screens: list[Screen]) -> None:
    screen = Screen(machine, "sh", "-c", "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done")
    screens.append(screen)
    assert screen.shows(b"ready") and eventually(lambda: is_raw(screen))
    screen.type(b"\x03")
    assert screen.shows(b"caught") and screen.leader.wait(60) == 5


def test_a_terminal_is_given_back_when_skep_is_killed(machine: Machine, screens: list[Screen]) -> None:
    screen = Screen(machine, "sh", "-c", "echo ready; sleep 600")
    screens.append(screen)
    assert screen.shows(b"ready") and eventually(lambda: is_raw(screen))
    os.kill(int(screen.pidfile.read_text()), signal.SIGKILL)
    assert eventually(lambda: termios.tcgetattr(screen.user) == screen.before)


def test_a_command_that_only_writes_to_the_terminal_takes_no_keys(machine: Machine, screens: list[Screen]) -> None:
    screen = Screen(machine, "sh", "-c", "test -t 1 && echo ready; sleep 1", stdin=subprocess.DEVNULL)
    screens.append(screen)
    assert screen.shows(b"ready") and not is_raw(screen)
    screen.type(b"for the shell\n")
    assert screen.leader.wait(60) == 0
    assert os.read(screen.user, 100) == b"for the shell\n"
