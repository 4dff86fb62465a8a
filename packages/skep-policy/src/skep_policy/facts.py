"""What the world looks like to a resolution, read once. A failing user's facts can be replayed in a test."""

from __future__ import annotations

import os

import msgspec

from .errors import PolicyError


class Facts(msgspec.Struct, frozen=True):
    """Who runs skep, from where, with which environment. `home` and `cwd` are absolute, their links not resolved.
    `other_homes` are the caller's too: what the user database says where `HOME` says something else, and that of the
    user who became root by sudo. Credentials are in them all the same.
    """

    home: str
    user: str
    uid: int
    gid: int
    cwd: str
    environ: dict[str, str]
    other_homes: tuple[str, ...] = ()

    @classmethod
    def gather(cls) -> Facts:
        """The facts of this process. Raises PolicyError when its folder is gone or it has no home."""
        environ = dict(os.environ)
        uid = os.getuid()
        try:
            cwd = os.getcwd()
        except OSError as error:
            raise PolicyError(f"the current folder cannot be used ({error.strerror}); cd to one that exists") from None
        known_home, known_user = _passwd(str(uid))
        home = environ.get("HOME", "")
        home = home if home.startswith("/") else known_home
        if not home.startswith("/"):
            raise PolicyError("no home folder: HOME is unset and the user database has none; set HOME")
        user = environ.get("USER") or environ.get("LOGNAME") or known_user or str(uid)
        others = [known_home, _passwd(environ.get("SUDO_UID", ""))[0] if uid == 0 else ""]
        others = [other for other in dict.fromkeys(others) if other.startswith("/") and other.strip("/")]
        return cls(home, user, uid, os.getgid(), cwd, environ, tuple(other for other in others if other != home))

    def xdg(self, name: str) -> str:
        """The base folder of `XDG_{name}_HOME`; a value that is not absolute does not count, as the standard says."""
        value = self.environ.get(f"XDG_{name}_HOME", "")
        return value if value.startswith("/") else self.home.rstrip("/") + _XDG_DEFAULTS[name]

    @property
    def state_dir(self) -> str:
        """Where skep keeps its runs and what was trusted."""
        return self.xdg("STATE") + "/skep"

    @property
    def config_file(self) -> str:
        """The user's own policy file."""
        return self.xdg("CONFIG") + "/skep/config.toml"


_XDG_DEFAULTS = {"CONFIG": "/.config", "DATA": "/.local/share", "STATE": "/.local/state", "CACHE": "/.cache"}


def _passwd(uid: str) -> tuple[str, str]:
    """(home, name) of a user by the user database, empty where it knows none."""
    import pwd

    try:
        entry = pwd.getpwuid(int(uid))
    except (KeyError, ValueError, OverflowError):
        return "", ""
    return entry.pw_dir, entry.pw_name
