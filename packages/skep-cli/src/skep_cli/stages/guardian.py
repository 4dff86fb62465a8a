"""The parent of a worker without a boundary: `python -I -S guardian.py LIFELINE COMMAND...`.

No operating system ends a tree of processes by itself, so this program is a child subreaper (prctl(2)): whatever of the
worker loses its parent becomes its child, and it ends its children until it has none. Over the lifeline, a socket, come
signal numbers, a byte each, for the worker's process group; its end means that skep is gone or wants an end. The worker
is the leader of a process group of its own. Exit status is the worker's, 128 + N on signal N; a command that cannot be
executed is told by `E` and the number of the error, in text.

Systems without subreapers get the process group only.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

PR_SET_CHILD_SUBREAPER = 36
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE)


def become_subreaper() -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    return ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def start(command: list[str], lifeline: socket.socket) -> int:
    """Pid of the worker, which leads its process group."""
    pid = os.fork()
    if pid:
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # it has done so itself, or is gone
        return pid
    try:
        os.setpgid(0, 0)
        for number in IGNORED:
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        lifeline.sendall(b"E%d" % (error.errno or 0))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    finally:
        os._exit(125)


def end_everything(worker: int, subreaper: bool) -> None:
    """No child is left, so nothing of the worker is."""
    while True:
        try:
            os.killpg(worker, signal.SIGKILL)
        except OSError:
            pass
        if not subreaper:
            return
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            children = [int(pid) for pid in listing.read().split()]
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def reap(worker: int) -> int | None:
    """The worker's exit status once it has one; other children that ended are reaped."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == worker:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if pid == 0:
            return None


def obey(lifeline: socket.socket, worker: int) -> bool:
    """False when there is nobody left to obey."""
    try:
        orders = lifeline.recv(64)
    except OSError:
        orders = b""
    for number in orders:
        try:
            os.killpg(worker, number)
        except OSError:
            pass
    return bool(orders)


def main() -> None:
    lifeline = socket.socket(fileno=int(sys.argv[1]))
    lifeline.set_inheritable(False)  # who holds it could order the end of others
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # blocked until now, so that none could end us
    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker)
    subreaper = become_subreaper()
    worker = start(sys.argv[2:], lifeline)
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    poll.register(wake, select.POLLIN)
    status: int | None = None
    while status is None:
        ready = {fd for fd, _ in poll.poll()}
        if wake in ready:
            os.read(wake, 512)
            status = reap(worker)
        if status is None and lifeline.fileno() in ready and not obey(lifeline, worker):
            break
    end_everything(worker, subreaper)
    os._exit(128 + signal.SIGKILL if status is None else status)


if __name__ == "__main__":
    main()
