"""`python -m skep_seatbelt probe` and `python -m skep_seatbelt allows PROFILE OPERATION [PATH]`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from .evaluate import Profile
from .probe import probe
from .reader import UnreadableProfile

USAGE = "usage: python -m skep_seatbelt probe | allows PROFILE OPERATION [PATH]\n"


def main(words: list[str]) -> int:
    """0 when usable, or allowed; 1 when not; 2 when asked wrongly."""
    match words:
        case ["probe"]:
            found = probe()
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
            return 0 if found.usable else 1
        case ["allows", file, operation, *path] if len(path) < 2:
            try:
                profile = Profile(Path(file).read_text())
                allowed = profile.allows(operation, path[0] if path else None)
            except (OSError, UnreadableProfile) as error:
                sys.stderr.write(f"{file}: {error}\n")
                return 2
            sys.stdout.write("allow\n" if allowed else "deny\n")
            return 0 if allowed else 1
        case _:
            sys.stderr.write(USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
