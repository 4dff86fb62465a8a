"""The worker's command: split as a shell splits words, and whether it can start on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from skep_policy.command import split_command
from skep_policy.errors import PolicyError

from .errors import UsageError


def split(text: str, option: str) -> list[str]:
    """The words of a command. Raises UsageError when there are none, a quote is left open, or a word is for a shell."""
    try:
        words = split_command(text)
    except PolicyError as error:
        raise UsageError(f"{option} {error.problem}") from None
    if not words:
        raise UsageError(f"{option} is empty: write a command, such as {option} './check.sh'")
    return words


def with_task(words: Sequence[str], task: str) -> list[str]:
    """The command with `{task}` replaced inside every word; the task is never split."""
    return [word.replace("{task}", task) for word in words]


def none_configured(known: Mapping[str, bool]) -> UsageError:
    """The error that says which agents there are, and what to type. `known` says of each preset whether its program is
    here.
    """
    found = [name for name, here in known.items() if here]
    remedy = "or set `preset` or `command` under [worker] in the policy file"
    if not found:
        names = ", ".join(known)
        return UsageError(f"no worker: give one with --worker 'CMD {{task}}', {remedy} (on PATH is none of {names})")
    return UsageError(f"no worker: give one, such as --worker {found[0]}, {remedy} (on PATH: {', '.join(found)})")


def missing(words: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Why the command cannot start on this machine; None when it can, or when it lies in the workspace and so cannot be
    told yet.
    """
    program = words[0]
    if "/" in program:
        if not os.path.isabs(program):
            return None
        return None if os.access(program, os.X_OK) else f"{program} is no program"
    if shutil.which(program, path=environ.get("PATH")):
        return None
    return f"there is no program {program!r} on PATH"


def remedy(words: Sequence[str], known: Sequence[str]) -> str:
    """What to do about a worker that is missing; `known` are the names of the presets."""
    from difflib import get_close_matches

    if close := get_close_matches(words[0], known, n=1):
        return "" if close[0] == words[0] else f"; did you mean --worker {close[0]}?"
    return f"; the presets are {', '.join(known)}"
