"""The small parent of a sandbox: whatever dies, and however, nothing of the sandbox is left.

It is a child subreaper (prctl(2)), so every process of the sandbox that loses its parent becomes its child; killing the
children it has until it has none therefore ends the whole tree, the worker that tampered with the sandbox's pid 1
included. It speaks over one socket, the lifeline:

    to it      `s` and a byte: send that signal to the worker;  `c`: continue after a stop;  `k`: end it
               end-of-file: whoever asked for the sandbox is dead, so end it
    from it    `bwrap PID`, `stopped SIGNAL`, `limit NAME`, `exit STATUS` (all is gone then), each a line

It runs forked from a single-threaded caller, or as a program of its own (`main`, with `-I -S`) for callers with
threads; both read the same plan. So it imports little, and nothing that is not in the standard library.
"""

from __future__ import annotations

import os
import select
import sys
import time

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator

    from .watch import Watch
else:
    import _signal as signal  # the module around it imports enum, which takes as long as ten of ours

HELD = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Ignored by bwrap, so that they reach the worker and not its monitor; the shim puts them back for the worker."""


class Plan:
    """NUL-terminated `key=value` records: argv (many), keep (descriptors of the child, many), stdin, stdout,
    diagnostics, tty (the controlling terminal), hand (is it handed over at once?), cgroup (folders to enter, many),
    limit (names of rlimits of the worker, many), wall (seconds), watch (of `Watch`, many).
    """

    def __init__(self, data: bytes) -> None:
        self.records: dict[str, list[str]] = {}
        for record in data.split(b"\0"):
            if record:
                key, _, value = os.fsdecode(record).partition("=")
                self.records.setdefault(key, []).append(value)

    def many(self, key: str) -> list[str]:
        return self.records.get(key, [])

    def number(self, key: str) -> int | None:
        return int(self.records[key][-1]) if key in self.records else None

    def descriptors(self) -> set[int]:
        return {int(fd) for key in ("keep", "stdin", "stdout", "diagnostics") for fd in self.many(key)}


def close_all_but(kept: set[int]) -> None:
    start = 3
    for fd in sorted(kept):
        if fd >= start:
            os.closerange(start, fd)
            start = fd + 1
    os.closerange(start, 1 << 20)


def start(plan: Plan, ptrace: Callable[..., int]) -> kernel.Hold:
    """Fork the sandbox: a process group of its own, the terminal if the caller had it, its cgroups; then exec.
    Without a terminal in the plan it gets a session of its own: /dev/tty inside is not the caller's then.
    """
    tty = plan.number("tty") if plan.number("hand") else None
    apart = plan.number("tty") is None
    gate, gate_key = os.pipe()
    pid = os.fork()
    if pid:
        try:
            if not apart:
                os.setpgid(pid, pid)
            if tty is not None:
                os.tcsetpgrp(tty, pid)
        except OSError:
            pass  # the child has done it, or is gone
        hold = kernel.Hold(pid, ptrace)
        os.write(gate_key, b"x")
        os.close(gate)
        os.close(gate_key)
        return hold
    try:
        os.close(gate_key)
        if not os.read(gate, 1):
            os._exit(125)  # the guardian is gone
        os.setsid() if apart else os.setpgid(0, 0)
        if tty is not None:
            os.tcsetpgrp(tty, os.getpid())
        for folder in plan.many("cgroup"):
            with open(folder + "/cgroup.procs", "w") as procs:
                procs.write("0")
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN if number in HELD else signal.SIG_DFL)
            except (OSError, ValueError):
                continue
        for fd, key in ((0, "stdin"), (1, "stdout"), (2, "diagnostics")):
            source = plan.number(key)
            if source is not None and source != fd:
                os.dup2(source, fd)
        keep = {int(fd) for fd in plan.many("keep")}
        close_all_but(keep)
        for fd in keep:
            os.set_inheritable(fd, True)
        argv = plan.many("argv")
        os.execve(argv[0], argv, {})
    except BaseException as error:
        os.write(2, f"guardian: {error}\n".encode(errors="replace"))
    os._exit(125)


def children(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children") as listing:
        return [int(pid) for pid in listing.read().split()]


def end_everything() -> int:
    """No process of the sandbox exists; returns the kibibytes of the largest there was (wait4(2)). Each round kills the
    children there are; orphans become children.
    """
    peak = 0
    while True:
        for pid in children(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            peak = max(peak, os.wait4(-1, 0)[2].ru_maxrss)
        except ChildProcessError:
            return peak


def worker_of(bwrap: int) -> int | None:
    """Pid, as seen here, of the worker: the first child of the sandbox's pid 1, which is the child of bwrap."""
    first = first_child(bwrap)
    return None if first is None else first_child(first)


def first_child(pid: int) -> int | None:
    try:
        return children(pid)[0]
    except (OSError, IndexError):
        return None


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


FIRST_LOOK = 0.2  # seconds from the start to the first look at limits: what ends before it never pays for them
STOP_PATIENCE = 1.0
"""Seconds for a stopped worker's whole group to stop: an editor first puts the terminal's modes back, and a reader that
has not yet run again would take what is typed next. Who ignores the stop is not waited for any longer."""
STOPPED = frozenset("TtZX")  # states of proc_pid_stat(5) in which a process does not run


def await_stop(bwrap: int) -> None:
    """Every process of bwrap's group has stopped, or has had its time; but pid 1 inside, which no terminal stops."""
    end, init = time.monotonic() + STOP_PATIENCE, first_child(bwrap)
    while any(pid != init and state not in STOPPED for pid, state in members(bwrap)) and time.monotonic() < end:
        time.sleep(0.002)


def members(group: int) -> Iterator[tuple[int, str]]:
    """Pids and states of the processes of a group."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                state, _, its_group = stat.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group:
            yield int(entry), state


class Guardian:
    def __init__(self, plan: Plan, lifeline: int) -> None:
        self.plan = plan
        self.lifeline = lifeline
        self.tty = plan.number("tty")
        self.own_group = os.getpgrp()
        self.bwrap = 0
        self.status: int | None = None
        self.pending: bytes = b""
        self.lookout: Watch | None = None
        self.modes: list[int | list[bytes | int]] | None = None

    def say(self, line: str) -> None:
        try:
            os.write(self.lifeline, (line + "\n").encode())
        except OSError:
            pass

    def run(self) -> None:
        """Returns when nothing of the sandbox is left; the last word on the lifeline is `exit STATUS`."""
        for number in (*HELD, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # only now: a handler of the caller's must not run here
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_write)
        ptrace = kernel.become_subreaper()
        self.keep_terminal()
        self.hold = start(self.plan, ptrace)
        self.bwrap = self.hold.bwrap
        self.say(f"bwrap {self.bwrap}")
        for fd in self.plan.descriptors() - {0, 1, 2, self.tty}:
            os.close(fd)
        limit = self.watch(wake_read, lambda: os.write(wake_write, b"\0"))
        peak = end_everything()
        self.take_terminal_back()
        limit = limit or self.limit_hit(peak)
        for folder in self.plan.many("cgroup"):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        if limit is not None:
            self.say(f"limit {limit}")
        self.say(f"exit {128 + signal.SIGKILL if self.status is None else self.status}")

    def keep_terminal(self) -> None:
        """Its modes as they are now."""
        if self.tty is not None:
            import termios

            try:
                self.modes = termios.tcgetattr(self.tty)
            except termios.error:
                pass

    def take_terminal_back(self) -> None:
        """Our group has the terminal again if the worker's, or one that is gone now, had it. A worker that was ended
        has not put back its modes: they are what they were before it, as a shell does.
        """
        if self.tty is None:
            return
        try:
            group = os.tcgetpgrp(self.tty)
            if group != self.own_group and (group == self.bwrap or not exists(group)):
                os.tcsetpgrp(self.tty, self.own_group)
                if self.modes is not None and (self.status is None or self.status > 128):
                    import termios

                    termios.tcsetattr(self.tty, termios.TCSADRAIN, self.modes)
        except Exception:  # OSError or termios.error: the terminal is gone
            pass

    def limit_hit(self, peak: int) -> str | None:
        """Which limit a worker that failed has met, as far as the kernel tells: it need not have failed by it."""
        if self.status == 128 + signal.SIGXFSZ and "file-size" in self.plan.many("limit"):
            return "file-size"
        told = self.plan.many("cgroup"), self.plan.many("watch")
        if self.status == 0 or not any(told):
            return None
        from .watch import limit_met

        return limit_met(self.lookout, *told, peak << 10)

    def watch(self, wake: int, tell: Callable[[], object]) -> str | None:
        """Until bwrap has ended, or must; the limit that is over, if one is. `tell` makes `wake` readable."""
        poll, begun, never = select.poll(), time.monotonic(), float("inf")
        for fd in (self.lifeline, wake):
            poll.register(fd, select.POLLIN)
        wall, watched = self.plan.many("wall"), self.plan.many("watch")
        end, look = begun + float(wall[0]) if wall else never, begun + FIRST_LOOK if watched else never
        while True:
            left = min(end, look) - time.monotonic()
            ready = dict(poll.poll(None if left == never else max(0.0, left) * 1000))
            if wake in ready:
                os.read(wake, 4096)
                if self.reap():
                    return None
            if self.lifeline in ready and not self.obey():
                return None
            if time.monotonic() >= end:
                return "wall"
            if time.monotonic() >= look:
                look = never
                from .watch import Watch  # not before it is needed: most workers have ended by now

                self.lookout = Watch(watched, lambda: first_child(self.bwrap), tell)
            if self.lookout is not None and (over := self.lookout.ended()) is not None:
                return over

    def reap(self) -> bool:
        """Whether bwrap has ended; its status is kept. A stop is told."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if self.hold.saw(pid, status):
                continue
            if pid == self.bwrap:
                if os.WIFSTOPPED(status):
                    await_stop(self.bwrap)
                    self.say(f"stopped {os.WSTOPSIG(status)}")
                else:
                    self.status = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                    return True

    def obey(self) -> bool:
        """Carry out what came over the lifeline; False when it is over."""
        try:
            orders = os.read(self.lifeline, 64)
        except OSError:
            return False
        if not orders:
            return False
        self.pending += orders
        while self.pending:
            order, rest = self.pending[:1], self.pending[1:]
            if order == b"k":
                return False
            if order == b"s":
                if not rest:
                    break  # its byte is on the way
                self.forward(rest[0])
                rest = rest[1:]
            elif order == b"c":
                self.resume()
            self.pending = rest
        return True

    def resume(self) -> None:
        try:
            if self.tty is not None and os.tcgetpgrp(self.tty) == self.own_group:
                os.tcsetpgrp(self.tty, self.bwrap)
        except OSError:
            pass  # the terminal is gone; the worker shall learn of it
        # bwrap first: who is let go may touch the terminal at once, and a later continue would undo the stop of that.
        for pid in (self.bwrap, *(pid for pid, _ in members(self.bwrap) if pid != self.bwrap)):
            try:
                os.kill(pid, signal.SIGCONT)
            except OSError:
                continue

    def forward(self, number: int) -> None:
        """To the worker alone, as kill(1) would; a terminal's signals to its whole group, as the terminal would."""
        worker = None if number in (signal.SIGINT, signal.SIGQUIT) else worker_of(self.bwrap)
        try:
            os.killpg(self.bwrap, number) if worker is None else os.kill(worker, number)
        except OSError:
            pass


def guard(plan: bytes, lifeline: int) -> None:
    """Body of a forked guardian; never returns."""
    code = 1
    try:
        try:
            parsed = Plan(plan)
            close_all_but({lifeline, *parsed.descriptors(), *map(int, parsed.many("tty"))})
            Guardian(parsed, lifeline).run()
            code = 0
        except BaseException as error:
            end_everything()
            os.write(lifeline, f"failed {type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)  # whatever else fails, such as a word to nobody: what is above us is the caller's program


def main() -> None:
    lifeline, size = int(sys.argv[1]), int(sys.argv[2])
    plan = b""
    while len(plan) < size:  # and no more: orders may follow at once
        block = os.read(lifeline, size - len(plan))
        if not block:
            os._exit(1)
        plan += block
    guard(plan, lifeline)
