"""The small parent of a sandbox, outside it: whatever dies, and however, nothing of the run is left.

macOS has neither a parent-death signal nor a subreaper nor a process namespace. What it has is the sandbox itself: no
process can leave it. Every profile lets its processes look up one Mach name that no other sandbox allows; so the
processes of a run are those the kernel says may look it up, and may not look up the same name with a letter more.
A process that is not sandboxed may look up both, one in another sandbox neither (or both).

It speaks over one socket, the lifeline, as the guardian of the Linux backend does:

    to it      `s` and a byte: send that signal to the worker;  `c`: continue after a stop;  `k`: end it
               end-of-file: whoever asked for the sandbox is dead, so end it
    from it    `stopped SIGNAL`, `limit NAME`, `left NUMBER` (that could not be ended), `exit STATUS`, each a line

Run as `python -I -S guardian.py FD SIZE`; the plan of SIZE bytes comes first on FD, NUL-terminated `key=value` records
with an empty one at the end: argv (many), keep (descriptors of the child, many), stdin, stdout, stderr, terminal (its
controlling terminal, maybe none), marker, wall (seconds), disk (bytes and files that are to be left of the file system
of a path, many), remove (folders that are gone at the end, many), user (the user's terminal, maybe none), modes (what
it is set back to when whoever asked for the sandbox is dead), log (a command that runs beside the worker, outside,
until the other end is closed) and log_output (where it writes). Stdlib only.
"""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import os
import select
import signal
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 200
"""Times that the processes of the run are searched for and killed. What is left after all outran every one."""

PAUSE = 0.005
"""Seconds between them, for what was killed to be gone."""

FILTER_GLOBAL_NAME = 2
CHECK_NO_REPORT = 0x40000000
"""`sandbox_filter_type` of sandbox_check, and the bit that keeps our questions out of the unified log."""

MAX_PIDS = 65536

BETWEEN_LOOKS = 0.1
"""Seconds between two looks at what is left of a disk."""

REMOVALS = (("/bin/rm", "-rf"), ("/usr/bin/chflags", "-R", "0"), ("/bin/chmod", "-R", "u+rwx"), ("/bin/rm", "-rf"))
"""What a worker has closed or marked immutable goes too. None of them follows a link it meets below."""


NO_ERRORS = ((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),)


class Plan:
    """What is to be started and how it ends."""

    def __init__(self, data: bytes) -> None:
        self.records: dict[str, list[str]] = {}
        for record in data.split(b"\0"):
            if record:
                key, _, value = os.fsdecode(record).partition("=")
                self.records.setdefault(key, []).append(value)

    def many(self, key: str) -> list[str]:
        return self.records.get(key, [])

    def number(self, key: str) -> int | None:
        values = self.records.get(key)
        return int(values[-1]) if values else None


def members(marker: str) -> list[int]:
    """Processes of the run with that marker. Empty off macOS, where there is no such sandbox."""
    if sys.platform != "darwin":
        return []
    system = ctypes.CDLL(None)
    # The name is a variadic argument, which Apple's 64-bit ARM passes elsewhere: ctypes knows from `argtypes`.
    check = system.sandbox_check
    check.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)
    pids = (ctypes.c_int * MAX_PIDS)()
    count = system.proc_listallpids(ctypes.byref(pids), ctypes.sizeof(pids))
    how = FILTER_GLOBAL_NAME | CHECK_NO_REPORT
    name, other = ctypes.c_char_p(marker.encode()), ctypes.c_char_p(marker.encode() + b"x")
    return [
        pid
        for pid in pids[: max(count, 0)]
        if pid > 0 and check(pid, b"mach-lookup", how, name) == 0 and check(pid, b"mach-lookup", how, other) == 1
    ]


def start(plan: Plan) -> int:
    """The child, leader of a session of its own with the run's terminal if there is one. Its group can be signalled."""
    is_leader, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        os.read(is_leader, 1)  # or its end
        os.close(is_leader)
        return child
    try:
        os.setsid()
        os.close(tell)
        terminal = plan.number("terminal")
        if terminal is not None:
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for target, key in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(int(plan.many(key)[0]), target)
        kept = {int(fd) for fd in plan.many("keep")}
        for fd in kept:
            os.set_inheritable(fd, True)
        close_all_but(kept)
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue
        argv = plan.many("argv")
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"})
    except BaseException:
        os._exit(127)


def close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the one that listed them


class Watch:
    """Looks at what is left of disks, from a thread of its own: one that does not answer keeps the guardian from
    nothing. Once less is left of one than its record says, `over` is set and `tell` has been called.
    """

    def __init__(self, records: Sequence[str], tell: Callable[[], object]) -> None:
        self.over = False
        self._disks = [record.split(" ", 2) for record in records]
        self._tell = tell
        if records:
            _thread.start_new_thread(self._look, ())

    def _look(self) -> None:
        while not any(short(path, int(size), int(files)) for size, files, path in self._disks):
            time.sleep(BETWEEN_LOOKS)
        self.over = True
        self._tell()


def short(path: str, size: int, files: int) -> bool:
    """Has the file system less left?"""
    try:
        info = os.statvfs(path)
    except OSError:
        return False
    return info.f_bavail * info.f_frsize < size or (info.f_files > 0 and info.f_favail < files)


class Guardian:
    def __init__(self, plan: Plan, lifeline: int) -> None:
        self.plan = plan
        self.lifeline = lifeline
        self.child = 0
        self.status: int | None = None
        self.orphaned = False
        self.log = 0

    def say(self, line: str) -> None:
        try:
            os.write(self.lifeline, (line + "\n").encode())
        except OSError:
            pass

    def run(self) -> None:
        """Returns when nothing of the run is left; the last word on the lifeline is `exit STATUS`."""
        for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGTTOU", "SIGPIPE"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write)
        names = ("keep", "stdin", "stdout", "stderr", "terminal", "log_output")
        used = {int(fd) for key in names for fd in self.plan.many(key)}
        for fd in {*used, self.lifeline} - {0, 1, 2}:  # whoever held one of these beside the worker would keep it open
            os.set_inheritable(fd, False)
        self.begin_log()
        self.child = start(self.plan)
        for fd in used - {0, 1, 2, self.lifeline, self.plan.number("user")}:
            os.close(fd)
        self.watch(wake_read, lambda: os.write(wake_write, b"\0"))
        left = self.end_everything()
        for folder in self.plan.many("remove"):
            remove(folder)
        if self.orphaned:
            self.restore()
        if left:
            self.say(f"left {left}")
        self.say(f"exit {128 + signal.SIGKILL if self.status is None else self.status}")
        self.end_log()

    def begin_log(self) -> None:
        command, output = self.plan.many("log"), self.plan.number("log_output")
        if output is None:
            return
        try:
            self.log = os.posix_spawn(
                command[0], command, {}, file_actions=[*NO_ERRORS, (os.POSIX_SPAWN_DUP2, output, 1)], setpgroup=0
            )
        except OSError:
            pass  # the other end sees that nothing is written

    def end_log(self) -> None:
        if not self.log:
            return
        try:
            while os.read(self.lifeline, 64):
                pass
        except OSError:
            pass
        try:
            os.kill(self.log, signal.SIGKILL)
            os.waitpid(self.log, 0)
        except OSError:
            pass  # it has ended

    def watch(self, wake: int, tell: Callable[[], object]) -> None:
        """Until the child has ended, or must. `tell` makes `wake` readable."""
        wall = self.plan.many("wall")
        end = time.monotonic() + float(wall[0]) if wall else None
        watch = Watch(self.plan.many("disk"), tell)
        while True:
            timeout = None if end is None else max(0.0, end - time.monotonic())
            ready = select.select([self.lifeline, wake], [], [], timeout)[0]
            if wake in ready:
                os.read(wake, 4096)
                if self.reap(os.WNOHANG):
                    return
            if self.lifeline in ready and not self.obey():
                return
            if end is not None and time.monotonic() >= end:
                self.say("limit wall")
                return
            if watch.over:
                self.say("limit disk-free")
                return

    def reap(self, how: int) -> bool:
        """Whether the child has ended; its status is kept. A stop is told."""
        while self.status is None:
            pid, status = os.waitpid(self.child, how | os.WUNTRACED)
            if pid == 0:
                return False
            if os.WIFSTOPPED(status):
                self.say(f"stopped {os.WSTOPSIG(status)}")
            else:
                self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        return True

    def obey(self) -> bool:
        """Carry out what came over the lifeline; False when it is over."""
        try:
            orders = os.read(self.lifeline, 64)
        except OSError:
            orders = b""
        self.orphaned = not orders
        at = 0
        while at < len(orders):
            order = orders[at : at + 1]
            at += 1
            if order == b"k":
                return False
            if order == b"c":
                self.signal(signal.SIGCONT, group=True)
            elif order == b"s" and at < len(orders):
                # The terminal's signals go to the whole group, as from a terminal; others to the worker alone.
                self.signal(orders[at], group=orders[at] in (signal.SIGINT, signal.SIGQUIT))
                at += 1
        return bool(orders)

    def signal(self, number: int, *, group: bool) -> None:
        try:
            (os.killpg if group else os.kill)(self.child, number)
        except OSError:
            pass

    def end_everything(self) -> int:
        """Kills the child's group and every process of the run, until none is found; how many are left."""
        # A group outlives its leader, and the system gives nobody the number of a group that still has members.
        self.signal(signal.SIGKILL, group=True)
        self.reap(0)
        found: list[int] = []
        for _ in range(ROUNDS):
            found = members(self.plan.many("marker")[0])
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            if not found:
                return 0
            time.sleep(PAUSE)
        return len(found)

    def give_up(self, word: str) -> None:
        """Nothing of the run is left, as far as that can be done after what happened."""
        try:
            if self.child:
                self.end_everything()
            for folder in self.plan.many("remove"):
                remove(folder)
        finally:
            self.say(word)
            self.end_log()

    def restore(self) -> None:
        """The user's terminal, which was raw for the worker, is as it was."""
        terminal = self.plan.number("user")
        if terminal is None:
            return
        import json

        *flags, characters = json.loads(self.plan.many("modes")[0])
        modes = [*flags, [bytes.fromhex(one) if isinstance(one, str) else one for one in characters]]
        try:
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
        except termios.error:
            pass  # it is gone


def remove(folder: str) -> None:
    """The folder is gone, as far as this user can remove it."""
    for command in REMOVALS:
        if not os.path.lexists(folder):
            return
        try:
            os.waitpid(os.posix_spawn(command[0], [*command, folder], {}, file_actions=NO_ERRORS), 0)
        except OSError:
            continue  # no such program on this system


def main() -> None:
    lifeline, size = int(sys.argv[1]), int(sys.argv[2])
    plan = b""
    while len(plan) < size:  # and no more: orders may follow at once
        block = os.read(lifeline, size - len(plan))
        if not block:
            os._exit(1)
        plan += block
    code = 0
    guardian = Guardian(Plan(plan), lifeline)
    try:
        guardian.run()
    except BaseException as error:
        guardian.give_up(f"failed {type(error).__name__}: {error}")
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
