"""The proxy of a sandbox that may reach nothing, started when somebody knocks.

All it would do is deny, by name and with the flag that would allow it; most commands that may reach nothing ask for
nothing. So what the sandbox hands over is taken and watched here, and the first connection or datagram is the proxy's
to answer: it stays where it is, in the listener, until the proxy has that.
"""

from __future__ import annotations

import _socket
import _thread
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINE = 1 << 16
"""Bytes of one message; `skep_proxy.handoff` says what is in it."""
MAX_FDS = 253
"""Descriptors of one message: the kernel's SCM_MAX_FD."""
LOOK, LOOKS = 0.001, 1000
"""Seconds between two looks at whether the proxy has answered who knocked, and how many there are at most."""
MAX_START = 30.0
"""Seconds for the proxy to take the listeners. It takes a tenth; whoever closes must not wait for one that hangs."""
MORE = b'"more": true'


class Doorman:
    """Serves one connection to a sandbox on a thread of its own, from now until `close`."""

    def __init__(self, sock: _socket.socket, open_door: Callable[[int], None]) -> None:
        """`open_door` is called on the thread when somebody knocks, with a descriptor it then owns: of a connection by
        which the listeners come once more.
        """
        self._sock = sock
        self._open_door = open_door
        self._messages: list[tuple[bytes, list[int]]] = []
        self._beyond: _socket.socket | None = None
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        _thread.start_new_thread(self._run, ())

    def close(self) -> None:
        """The thread has ended. Who knocked before is being answered; nothing of ours is open."""
        os.eventfd_write(self._stop, 1)
        self._ended.acquire()
        self._refuse_all()
        os.close(self._stop)
        self._sock.close()
        if self._beyond is not None:
            self._beyond.close()

    def _run(self) -> None:
        try:
            if self._take() and self._somebody_knocks():
                self._hand_on()
        except BaseException:  # nobody will answer: refused at once, and not waited for
            self._refuse_all()
        finally:
            self._ended.release()

    def _refuse_all(self) -> None:
        """Our copies of the listeners are closed; where the proxy has none, the kernel refuses."""
        while self._messages:
            for fd in self._messages.pop()[1]:
                os.close(fd)

    def _take(self) -> bool:
        """Everything has been handed over, and the sandbox knows; False when it has ended before."""
        size = _socket.CMSG_SPACE(MAX_FDS * 4)
        while self._ready([self._sock.fileno()]):
            line, control, _, _ = self._sock.recvmsg(MAX_LINE, size, _socket.MSG_CMSG_CLOEXEC)
            fds: list[int] = []
            for level, kind, content in control:
                if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                    fds += memoryview(content[: len(content) & ~3]).cast("i").tolist()
            self._messages.append((line, fds))
            if not line.endswith(b"\n"):
                return False
            if MORE not in line:
                self._sock.send(b"go\n")
                return True
        return False

    def _somebody_knocks(self) -> bool:
        return self._ready([fd for _, fds in self._messages for fd in fds])

    def _ready(self, fds: list[int]) -> bool:
        """Blocks until one of them can be read (True), or until `close`."""
        poll = select.poll()
        for fd in (*fds, self._stop):
            poll.register(fd, select.POLLIN)
        return any(fd != self._stop for fd, _ in poll.poll())

    def _hand_on(self) -> None:
        """By a connection that stays open, as the listeners live as long as it."""
        self._beyond, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._open_door(theirs.detach())
        for line, fds in self._messages:
            rights = b"".join([fd.to_bytes(4, sys.byteorder) for fd in fds])
            self._beyond.sendmsg([line], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        self._beyond.settimeout(MAX_START)
        self._beyond.recv(16)  # `go`: every listener is served
        for _ in range(LOOKS):
            if not self._waiting():
                break  # who knocked is the proxy's now, though the sandbox may have ended
            time.sleep(LOOK)

    def _waiting(self) -> bool:
        poll = select.poll()
        for _, fds in self._messages:
            for fd in fds:
                poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))
