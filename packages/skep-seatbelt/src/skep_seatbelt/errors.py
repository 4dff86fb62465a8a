"""Why a worker did not start."""

from __future__ import annotations


class BackendUnavailable(Exception):
    """The boundary could not be applied, and so the worker never ran. `fix` is a command or a sentence, maybe empty."""

    def __init__(self, problem: str, *, fix: str = "", check: str = "sandbox-exec") -> None:
        self.problem = problem
        self.fix = fix
        self.check = check
        super().__init__(f"{problem}; {fix}" if fix else problem)
