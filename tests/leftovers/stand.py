"""A skep that is held at a chosen stage while one of its processes gets a signal, and what is left of it afterwards.

Stages are reached by gates and never by waiting: programs called `bwrap` and `git` on PATH that stop at a FIFO (bwrap's
own `--userns-block-fd` and `--block-fd` among it), a worker and a verification that wait for a file, and SIGSTOP to
whoever would go on. The process of the tests is a child subreaper meanwhile, so what skep leaves becomes its child.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from skep_bwrap.cgroup import hierarchies
from skep_bwrap.find import bundled_bwrap, find_bwrap

from .processes import children, program, send, sits, state, tree_of, waits_at, wchan, words

SKEP = Path(sys.executable).with_name("skep")
PR_SET_CHILD_SUBREAPER = 36
SYSTEM = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
BOUND = 60.0
"""Seconds in which skep must have come to an end: for what hangs, not a measure of speed."""
MOMENT = 0.4
"""Seconds given to a victim to die of its signal; one that has not is let go on. Either way must come to a right end,
so nothing depends on how much it is."""

BWRAP = """#!/bin/bash
if [ "$1" = --args ] && [ -e {gates}/stage ]; then
  read -r stage < {gates}/stage
  case $stage in
    exec) read -r _ <> {gates}/fifo ;;
    clone) exec 200<> {gates}/fifo 201> /dev/null {real} --userns-block-fd 200 --info-fd 201 "$@" ;;
    ready) exec 200<> {gates}/fifo {real} --block-fd 200 "$@" ;;
  esac
fi
exec {real} "$@"
"""
GIT = """#!/bin/sh
if [ -e {gates}/git ]; then read -r _ <> {gates}/fifo; fi
exec {real} "$@"
"""
WORK = (
    "echo x > begun.{name}; (setsid sleep 1000 &); while [ ! -e {gates}/{name} ]; do sleep 0.02; done;"
    " echo x > done.{name}; echo {name} is done"
)


class Left(NamedTuple):
    code: int
    said: str
    done: bool
    runs: list[dict[str, object]]


class Stand:
    """Folders and gates of one skep. `mode` is exec, allow, overlay, copy or library."""

    def __init__(self, base: Path, mode: str) -> None:
        self.base, self.mode = base, mode
        self.home, self.gates, self.bin = base / "home", base / "gates", base / "bin"
        self.tree = self.home / "work"
        self.temporary = base / "tmp"
        for folder in (self.home, self.gates, self.bin, self.tree, self.temporary):
            folder.mkdir()
        os.mkfifo(self.gates / "fifo")
        for name, text, real in (("bwrap", BWRAP, bwrap(mode)), ("git", GIT, find("git"))):
            path = self.bin / name
            path.write_text(text.format(gates=self.gates, real=real))
            path.chmod(0o755)
        self.environ = {"PATH": f"{self.bin}:{SYSTEM}", "HOME": str(self.home), "TMPDIR": str(self.temporary)}
        (self.tree / "file").write_text("x\n")
        if self.is_run:
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
                who = {"user.name": "a", "user.email": "a@b", "commit.gpgsign": "false"}
                settings = [word for key, value in who.items() for word in ("-c", f"{key}={value}")]
                assert self.free(["git", *settings, *words]).returncode == 0
        self.runs = self.home / ".local/state/skep/runs"
        self.children = set(children(os.getpid()))
        self.mounts = Path("/proc/self/mountinfo").read_text()
        self.stopped: list[int] = []
        self.stage, self.key = "", -1
        self.output = base / "said"
        self.skep: subprocess.Popen[bytes] | None = None

    # How it is started

    @property
    def is_run(self) -> bool:
        return self.mode in ("overlay", "copy")

    def argv(self, *, free: bool = False) -> list[str]:
        """The command; `free` is one that waits for nothing."""
        sh = ["sh", "-c", "true" if free else WORK.format(gates=self.gates, name="worker")]
        limits = ["--memory", "1GiB", "--processes", "500"]
        if self.is_run:
            check = "true" if free else WORK.format(gates=self.gates, name="verify")
            words = [str(SKEP), "run", ".", "task", "--workspace", self.mode, *limits]
            if self.stage == "setup" and not free:
                words += ["--setup", quoted(["sh", "-c", WORK.format(gates=self.gates, name="setup")])]
            return [*words, "--worker", quoted(sh), "--verify", quoted(["sh", "-c", check])]
        if self.mode == "library":
            return [sys.executable, str(Path(__file__).with_name("caller.py")), *sh]
        allow = ["--allow", "example.com"] if self.mode == "allow" else []
        return [str(SKEP), "exec", *limits, *allow, "--", *sh]

    def start(self, stage: str) -> None:
        self.stage = stage
        if stage in ("exec", "clone", "ready", "shim"):
            (self.gates / "stage").write_text("ready\n" if stage == "shim" else stage + "\n")
        if stage == "snapshot":
            (self.gates / "git").touch()
        with self.output.open("wb") as said:
            self.skep = subprocess.Popen(
                [sys.executable, "-c", AS_USUAL, *self.argv()],
                cwd=self.tree,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    # How a stage is reached

    def reach(self, stage: str) -> None:
        assert self.skep is not None
        if stage in ("snapshot", "exec", "clone", "ready", "shim"):
            self.until(lambda: self.at_gate("git" if stage == "snapshot" else stage))
        if stage == "shim":
            self.stop(self.skep.pid)
            self.release()
            self.until(lambda: sits(self.victim("shim")) and "python" in program(self.victim("shim")))
        if stage == "setup":
            self.until(lambda: self.has_begun("setup"))
        if stage in ("worker", "ending", "collecting", "verification", "sealing"):
            self.until(lambda: self.has_begun("worker"))
        if stage == "ending":
            self.stop(self.victim("guardian"))
            bwrap = self.victim("bwrap")
            self.let("worker")
            self.until(lambda: state(bwrap) == "Z")
        if stage == "collecting":
            (self.gates / "git").touch()
            self.let("worker")
            self.until(lambda: self.at_gate("git"))
        if stage in ("verification", "sealing"):
            self.let("worker")
            self.until(lambda: "verifying:" in self.said() and self.victim("worker") != 0 and self.has_begun("verify"))
        if stage == "sealing":
            self.let("verify")
            self.until(lambda: "verification passed" in self.said())
            self.stop(self.skep.pid)

    def at_gate(self, stage: str) -> bool:
        return waits_at(self.victim({"git": "git", "exec": "bwrap"}.get(stage, "pid 1")), stage)

    def has_begun(self, name: str) -> bool:
        if not self.is_run:
            return (self.tree / f"begun.{name}").exists()
        worker = self.victim("worker")
        return bool(worker) and f"begun.{name}" in words(worker) and bool(children(worker))

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.skep is not None
        end = time.monotonic() + BOUND
        while not condition():
            assert self.skep.poll() is None, f"it ended before the stage: {self.skep.returncode}: {self.said()}"
            assert time.monotonic() < end, f"the stage is not reached: {self.said()}"
            time.sleep(0.002)

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def victim(self, name: str) -> int:
        """Pid of one of skep's processes; 0 when there is none."""
        assert self.skep is not None
        if name == "skep":
            return self.skep.pid
        below = children(self.skep.pid)
        if name == "git":
            return next((pid for pid in below if program(pid).endswith(("git", "sh"))), 0)
        pid = next((pid for pid in below if "python" in program(pid)), 0)
        for level in ("guardian", "bwrap", "pid 1", "worker"):
            if not pid or name == level or (name == "shim" and level == "worker"):
                return pid
            pid = next(iter(children(pid)), 0)
        raise ValueError(name)

    def stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.stopped.append(pid)
        self.until(lambda: state(pid) in "TZ")

    def let(self, name: str) -> None:
        (self.gates / name).touch()

    def release(self) -> None:
        """Who waits at a gate goes on, and nobody will wait at one again."""
        for name in ("stage", "git"):
            (self.gates / name).unlink(missing_ok=True)
        if self.key < 0:
            self.key = os.open(self.gates / "fifo", os.O_RDWR | os.O_CLOEXEC)
            os.write(self.key, b"xx\n" * 100)  # and stays there, for who has looked already and comes in a moment

    # The end

    def end(self, *, alone: bool) -> Left:
        """Let go on what was held, wait for the end, and look at everything that could be left. What stands at a gate
        must go with skep where skep died `alone`; where its guardian died too it goes on, and so ends by itself.
        """
        assert self.skep is not None
        moment = time.monotonic() + MOMENT
        for pid in self.stopped:
            send(pid, signal.SIGCONT)
        while time.monotonic() < moment and self.skep.poll() is None:
            time.sleep(0.01)
        if self.skep.poll() is None:
            for name in ("setup", "worker", "verify"):
                self.let(name)
            self.release()
        try:
            code = self.skep.wait(BOUND)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"skep hangs: {self.tell()}") from None
        if not alone:
            self.release()
        assert eventually(lambda: not self.orphans()), f"left: {self.tell()}"
        assert self.mounts == Path("/proc/self/mountinfo").read_text()
        return Left(code, self.said(), self.done(), self.listed() if self.is_run else [])

    def done(self) -> bool:
        return "worker is done" in self.said() or (self.tree / "done.worker").exists()

    def orphans(self) -> set[int]:
        """Processes that are ours now and were not before, those that have ended taken away."""
        found = set(children(os.getpid())) - self.children
        for pid in found:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
        return set(children(os.getpid())) - self.children

    def tell(self) -> str:
        assert self.skep is not None
        top = [*self.orphans(), self.skep.pid]
        return f"{[(pid, state(pid), wchan(pid), words(pid)) for one in top for pid in tree_of(one)]}\n{self.said()}"

    def listed(self) -> list[dict[str, object]]:
        done = self.free([str(SKEP), "runs", "--json"])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def free(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        env = {**self.environ, "PATH": SYSTEM}
        return subprocess.run(argv, cwd=self.tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def on_disk(self) -> list[str]:
        """What is there only while skep runs: cgroups of it, and the scratch of runs."""
        assert self.skep is not None
        with open("/proc/self/mountinfo") as mounts, open("/proc/self/cgroup") as own:
            folders = {Path(path) for path in hierarchies(mounts.read(), own.read()).values()}
        folders |= {folder.parent for folder in folders}
        left = [str(path) for folder in folders for path in folder.glob(f"skep-{self.skep.pid}-*")]
        scratch = ("workspace", "verify", "rules", "agent", "setup", "lock")
        left += [str(path) for path in self.runs.glob("*/*") if path.name in scratch]
        return left + [str(path) for path in self.runs.glob(".*")]

    def unexpected(self) -> list[str]:
        """What is in the user's tree or in temporary folders and nobody asked for."""
        names = {".git", "file", "begun.worker", "done.worker"}
        sockets = [line for line in Path("/proc/net/unix").read_text().splitlines() if str(self.base) in line]
        return [*sorted(set(os.listdir(self.tree)) - names), *sockets, *os.listdir(self.temporary)]

    def close(self) -> None:
        if self.key >= 0:
            os.close(self.key)
        if self.skep is not None:
            for pid in (*tree_of(self.skep.pid), *(pid for top in self.orphans() for pid in tree_of(top))):
                send(pid, signal.SIGKILL)
            self.skep.wait()
            eventually(lambda: not self.orphans())


AS_USUAL = (
    "import os, signal, sys\n"
    "for number in range(1, 32):\n"
    "    if number not in (9, 19): signal.signal(number, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Signals as a shell gives them to a command, whatever the process of the tests was started by."""


@contextmanager
def stand(base: Path, mode: str) -> Generator[Stand]:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    made = Stand(base, mode)
    try:
        yield made
    finally:
        made.close()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        shutil.rmtree(base, ignore_errors=True)


def bwrap(mode: str) -> str:
    """The one that would be taken; for an overlay the bundled one, which knows how."""
    bundled = bundled_bwrap()
    return bundled if mode == "overlay" and bundled is not None else find_bwrap(environ=os.environ)


def find(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def quoted(argv: list[str]) -> str:
    import shlex

    return shlex.join(argv)


def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()
