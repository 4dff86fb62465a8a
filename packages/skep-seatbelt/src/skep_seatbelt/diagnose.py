"""What sandbox-exec's words and status mean. Pure."""

from __future__ import annotations

from .errors import BackendUnavailable

NESTED = "already inside a sandbox, and macOS cannot put one into another"
NESTED_FIX = (
    "run skep outside of the tool that sandboxed it, or give that tool's own sandbox its off switch for this command"
)


def classify(text: str, status: int) -> BackendUnavailable:
    """Why sandbox-exec ended before the first program inside spoke. `text` is what it wrote, `status` its own."""
    said = " ".join(text.split())[:300]
    if "sandbox_apply" in text and "Operation not permitted" in text:
        return BackendUnavailable(NESTED, fix=NESTED_FIX, check="nested")
    if status == 65 or "unbound variable" in text or "syntax" in text or "invalid" in text.lower():
        return BackendUnavailable(
            f"macOS does not take the profile: {said or 'no reason given'}",
            fix="report it with the output of `sw_vers`; the profile is in boundary.txt",
            check="profile",
        )
    if status == 127:
        return BackendUnavailable(
            "sandbox-exec or the first program inside is missing", fix="it is part of macOS: /usr/bin/sandbox-exec"
        )
    if status >= 128:
        return BackendUnavailable(
            f"the first program inside was killed by signal {status - 128}",
            fix="it cannot read something it needs; `log show --last 1m --predicate 'sender == \"Sandbox\"'` names it",
            check="profile",
        )
    return BackendUnavailable(f"sandbox-exec ended with {status}: {said or 'no reason given'}")
