"""A host that does not hold still: what comes and goes while it is looked at hides nothing else, and is no error."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from skep_bwrap.sockets import census, pipes, processes

LOOKS = 40
RESTLESS = """
import os, socket, sys
folder = sys.argv[1]
kept = os.open(folder + "/pipe", os.O_RDWR)
print("at it", flush=True)
while os.getppid() == int(sys.argv[2]):
    held = [os.open("/", os.O_RDONLY) for _ in range(40)]
    for fd in held[::2] + held[1::2]:
        os.close(fd)
    one = socket.socket(socket.AF_UNIX)
    one.bind(folder + "/comes-and-goes")
    one.listen()
    os.rename(folder + "/comes-and-goes", folder + "/moved")
    one.close()
    os.unlink(folder + "/moved")
"""


@contextmanager
def restless(folder: Path) -> Generator[None]:
    """Beside a process that opens, closes, binds and removes all the time, and has a named pipe open."""
    os.mkfifo(folder / "pipe")
    child = subprocess.Popen(
        [sys.executable, "-c", RESTLESS, str(folder), str(os.getpid())], stdout=subprocess.PIPE, text=True
    )
    with child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "at it\n"
            yield
            assert child.poll() is None
        finally:
            child.kill()


def test_what_comes_and_goes_hides_no_socket_and_no_pipe(elsewhere: Path) -> None:
    with restless(elsewhere), socket.socket(socket.AF_UNIX) as stays, socket.socket(socket.AF_UNIX) as renamed:
        stays.bind(str(elsewhere / "stays"))
        stays.listen()
        renamed.bind(str(elsewhere / "before"))
        renamed.listen()
        (elsewhere / "before").rename(elsewhere / "renamed")
        for _ in range(LOOKS):
            found = census().sockets
            assert str(elsewhere / "stays") in found and str(elsewhere / "renamed") in found
            assert str(elsewhere / "pipe") in pipes(processes())
