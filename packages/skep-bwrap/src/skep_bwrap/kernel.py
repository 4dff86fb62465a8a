"""What the kernel does for a guardian, dead ones included. Part of `guardian`, and under the same rules."""

from __future__ import annotations

import _ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_CHILD_SUBREAPER = 36
PTRACE_CONT, PTRACE_DETACH, PTRACE_SEIZE = 7, 17, 0x4206
PTRACE_O_TRACEFORK, PTRACE_O_EXITKILL = 1 << 1, 1 << 20
PTRACE_EVENT_FORK, PTRACE_EVENT_STOP = 1, 128


def functions(*names: str) -> list[Callable[..., int]]:
    """Of the C library, by `_ctypes`: the `ctypes` module around it takes longer than everything else here."""

    class Number(_ctypes._SimpleCData):  # type: ignore[misc, name-defined]
        _type_ = "l"

    class Function(_ctypes.CFuncPtr):  # type: ignore[misc, name-defined]
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Number
        _argtypes_ = (Number,) * 5

    library = _ctypes.dlopen(None, os.RTLD_NOW)  # type: ignore[attr-defined]
    return [Function(_ctypes.dlsym(library, name)) for name in names]  # type: ignore[attr-defined]


def become_subreaper() -> Callable[..., int]:
    """Whoever of our descendants loses its parent becomes our child. Returns ptrace(2)."""
    prctl, ptrace = functions("prctl", "ptrace")
    if prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) & 0xFFFFFFFF:  # an int
        raise OSError(_ctypes.get_errno(), "child subreaper")
    return ptrace


class Hold:
    """A bwrap that is traced while it sets up, so that the kernel ends it, and the sandbox's pid 1, with the guardian.

    Nothing else would: pid 1 begins by waiting for a word of bwrap, has no parent-death signal yet, and would wait for
    ever for one that was killed. Its first child ends the hold; whatever is orphaned from then on comes to its end by
    itself, since the shim goes no further than to ask its caller. Where tracing is refused there is no hold.
    """

    def __init__(self, bwrap: int, ptrace: Callable[..., int]) -> None:
        self.bwrap = bwrap
        self._init = 0
        self._ptrace = ptrace
        options = PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL
        seized = self._ptrace(PTRACE_SEIZE, bwrap, 0, options, 0) == 0
        self._traced = {bwrap} if seized else set[int]()

    def saw(self, pid: int, status: int) -> bool:
        """Whether what `waitpid` has told is an affair of the hold; who stopped for it goes on."""
        if not os.WIFSTOPPED(status):
            self._traced.discard(pid)
            return False
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == PTRACE_EVENT_STOP and pid not in self._traced:  # born a moment ago
            if not self._init:
                self._init = pid
                self._traced.add(pid)
                self._ptrace(PTRACE_CONT, pid, 0, 0, 0)
            else:
                self._ptrace(PTRACE_DETACH, pid, 0, 0, 0)
        elif pid not in self._traced:
            return False
        elif event:  # it has a child; or was stopped as by a terminal, which shall look as it does without us
            self._traced.discard(pid)
            self._ptrace(PTRACE_DETACH, pid, 0, 0, 0)
        else:
            self._ptrace(PTRACE_CONT, pid, 0, number, 0)
        return True
