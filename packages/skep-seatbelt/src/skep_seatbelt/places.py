"""What macOS fixes: which spellings of a path are links, what a process needs to start, which devices everybody uses.

Data and string work only; nothing here looks at a disk.
"""

from __future__ import annotations

import unicodedata

LINKS = (
    ("/tmp", "/private/tmp"),
    ("/var", "/private/var"),
    ("/etc", "/private/etc"),
    ("/home", "/System/Volumes/Data/home"),
)
"""Links of every macOS. The kernel asks about the right side; a rule about the left one is dead, and a dead deny is
open."""

DATA = "/System/Volumes/Data"

FIRMLINKED = (
    *("/AppleInternal", "/Applications", "/Library", "/Users", "/Volumes", "/cores", "/opt", "/private", "/usr/local"),
    *("/System/Library/Assets", "/System/Library/AssetsV2", "/System/Library/Caches", "/System/Library/Speech"),
    *("/System/Library/PreinstalledAssets", "/System/Library/PreinstalledAssetsV2"),
    *("/System/Library/CoreServices/CoreTypes.bundle/Contents/Library", "/usr/libexec/cups", "/usr/share/snmp"),
)
"""Folders of the data volume that appear at the root: two names of one folder, with no link between them."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/dev/dtracehelper", "/dev/stdout", "/dev/stderr")
"""Written by almost everything; none of them keeps anything."""

READ_DEVICES = ("/dev", "/dev/autofs_nowait", "/dev/stdin")
"""Opened besides these. No other device is: a terminal of the user's takes keystrokes from whoever may ioctl it, and
where somebody has opened them to the user, `/dev/bpf0` shows what the machine sends and a serial port what is on it."""

OWN_TERMINAL = "com.apple.sandbox.pty"
"""The extension the kernel gives a process for pseudo-terminals it opened itself."""

STARTUP_READS = (
    *("/System/Library", "/System/Cryptexes", "/System/DriverKit", "/System/iOSSupport", "/System/Volumes/Preboot"),
    *("/usr", "/bin", "/sbin", "/Library/Apple", "/Library/Frameworks", "/Library/Developer"),
    *("/Library/Preferences/Logging", "/Applications/Xcode.app", "/opt/homebrew", "/opt/local", "/nix/store", "/dev"),
    *("/private/etc", "/private/var/db/dyld", "/private/var/db/timezone", "/private/var/db/xcode_select_link"),
    *("/private/var/select", "/private/var/db/mds/messages", "/private/var/run/mDNSResponder"),
)
"""What `read = "minimal"` still reads, whatever the boundary lists: without it nothing starts, or no compiler does.
Not `/System`, which holds a second name of the whole data volume."""

PLAIN = "/_-~ %,=@:"
"""Means itself in every dialect of regular expressions."""

ODD = "[^ -~]"
"""What is not ASCII."""

ONE_CHARACTER_FOR = ("ffi", "ffl", "ff", "fi", "fl", "ss", "st")
"""Letters that are the folded case of one character: whoever looks up `config` finds what was made with a ligature."""

RESOLVER = "/private/var/run/mDNSResponder"


def canonical(path: str) -> str:
    """`path` by the name the kernel uses for it, as far as that follows from the name alone."""
    for link, target in LINKS:
        if path == link or path.startswith(link + "/"):
            path = target + path[len(link) :]
    if path.startswith(DATA + "/"):
        short = path[len(DATA) :]
        if _firmlinked(short):
            return short
    return path


def spellings(path: str) -> tuple[str, ...]:
    """Every name under which the kernel might ask about `path`. macOS 11 and 12 were seen to use the long one."""
    short = canonical(path)
    return (short, DATA + short) if _firmlinked(short) else (short,)


def ancestors(path: str) -> tuple[str, ...]:
    """The folders above a path, shallow first, without `/`."""
    parts = path.strip("/").split("/")[:-1]
    return tuple("/" + "/".join(parts[: count + 1]) for count in range(len(parts)))


def below(path: str, folder: str) -> bool:
    """Is `path` the folder, or in it?"""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def pattern_for(name: str, *, fold: bool = False) -> str:
    """A regular expression for `name`; with `fold`, for every name that APFS or HFS+ takes for it, and a few more.

    A name that does not exist yet can be created in any case: `.Git` is `.git` to whoever looks it up, `k` and `s` have
    variants outside ASCII, some letters together are one character, and HFS+ passes over characters that are not seen.
    What is not ASCII is written as "some characters that are not", after its base letter if it has one: it may be
    composed or not, and the kernel may count bytes. The two characters that cannot stand in an expression are any one
    character.
    """
    text = unicodedata.normalize("NFC", name)
    if not fold:
        return "".join(map(_exactly, text))
    parts: list[str] = []
    at = 0
    while at < len(text):
        joined = next((few for few in ONE_CHARACTER_FOR if text[at:].lower().startswith(few)), "")
        if joined:
            spelled = "".join(f"{ODD}*{_in_any_case(letter)}" for letter in joined)
            letters = "".join(f"{letter}{letter.upper()}" for letter in dict.fromkeys(joined))
            parts.append(f"({spelled}|[{letters}]*{ODD}+[{letters}]*)")
        elif text[at] == "/":
            parts.append(f"{ODD}*/")
        else:
            parts.append(f"{ODD}*{_in_any_case(text[at])}")
        at += len(joined) or 1
    return "".join(parts) + f"{ODD}*"


def _exactly(character: str) -> str:
    if not character.isascii():
        base = unicodedata.normalize("NFD", character)[0]
        letter = f"[{base.lower()}{base.upper()}]?" if base.isascii() and base.isalpha() else ""
        return letter + ODD + "+"
    if character in '"\\':
        return "[^/]"
    return character if character.isalnum() or character in PLAIN else "\\" + character


def _in_any_case(character: str) -> str:
    if not (character.isascii() and character.isalpha()):
        return _exactly(character)
    either = f"[{character.lower()}{character.upper()}]"
    return f"({either}|{ODD})" if character in "kKsS" else either


def _firmlinked(path: str) -> bool:
    return any(below(path, folder) for folder in FIRMLINKED)
