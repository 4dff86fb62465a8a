"""What the world looks like to a resolution, read once. A failing user's facts can be replayed in a test."""

from __future__ import annotations

import os

import msgspec

from .errors import PolicyError


class Facts(msgspec.Struct, frozen=True):
    """Who runs skep, from where, with which environment. `home` and `cwd` are absolute, their links not resolved."""

    home: str
    user: str
    uid: int
    gid: int
    cwd: str
    environ: dict[str, str]

    @classmethod
    def gather(cls) -> Facts:
        """The facts of this process. Raises PolicyError when its folder is gone or it has no home."""
        environ = dict(os.environ)
        try:
            cwd = os.getcwd()
        except OSError as error:
            raise PolicyError(f"the current folder cannot be used ({error.strerror}); cd to one that exists") from None
        home, user = environ.get("HOME", ""), environ.get("USER") or environ.get("LOGNAME") or ""
        if not home.startswith("/") or not user:
            entry_home, entry_user = _passwd(os.getuid())
            home = home if home.startswith("/") else entry_home
            user = user or entry_user or str(os.getuid())
        if not home.startswith("/"):
            raise PolicyError("no home folder: HOME is unset and the user database has none; set HOME")
        return cls(home=home, user=user, uid=os.getuid(), gid=os.getgid(), cwd=cwd, environ=environ)

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


def _passwd(uid: int) -> tuple[str, str]:
    import pwd  # only where the environment does not say

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return "", ""
    return entry.pw_dir, entry.pw_name
