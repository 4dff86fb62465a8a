"""What the world looks like to a resolution, read once. A failing user's facts can be replayed in a test."""

from __future__ import annotations

import os
import sys

from .boundary import below
from .errors import PolicyError
from .paths import Tree
from .value import Value


class Facts(Value):
    """Who runs skep, from where, with which environment. `home` and `cwd` are absolute, their links not resolved.
    `other_homes` are the caller's too: what the user database says where `HOME` says something else, and that of the
    user who became root by sudo. Credentials are in them all the same. `code` is what skep runs from
    (`own_code`), `python` where its Python is installed.
    """

    home: str
    user: str
    uid: int
    gid: int
    cwd: str
    environ: dict[str, str]
    other_homes: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    python: str = ""

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
        others = [other for other in others if other != home]
        return cls(
            home, user, uid, os.getgid(), cwd, environ, tuple(others), own_code(), os.path.realpath(sys.base_prefix)
        )

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


OWN = ("skep_bwrap", "skep_cli", "skep_netshim", "skep_policy", "skep_proxy", "skep_seatbelt")


def own_code() -> tuple[str, ...]:
    """What the next launch will run on the host beside the Python itself: its virtual environment, skep's packages
    where they are, what they need when it is there too, and all bytecode that is kept apart. Real paths, sorted.
    """
    tree = Tree()
    python, environment = tree.real(sys.base_prefix), tree.real(sys.prefix)
    found = {environment} - {python}
    if sys.pycache_prefix:
        found.add(tree.real(sys.pycache_prefix))
    for entry in sys.path:
        folder = tree.real(entry)
        if below(folder, environment) and environment != python:
            continue
        own = [f"{folder}/{name}" for name in OWN if os.path.isdir(f"{folder}/{name}")]
        found.update([folder] if own and os.path.isdir(f"{folder}/msgspec") else own)
    return tuple(sorted(found))


_XDG_DEFAULTS = {"CONFIG": "/.config", "DATA": "/.local/share", "STATE": "/.local/state", "CACHE": "/.cache"}


def _passwd(uid: str) -> tuple[str, str]:
    """(home, name) of a user by the user database, empty where it knows none."""
    import pwd

    try:
        entry = pwd.getpwuid(int(uid))
    except (KeyError, ValueError, OverflowError):
        return "", ""
    return entry.pw_dir, entry.pw_name
