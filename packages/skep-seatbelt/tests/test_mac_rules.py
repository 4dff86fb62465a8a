"""On a Mac: what the profile language means there, asked with profiles of a few lines, and what this profile closes
that no path names.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from skep_policy.boundary import Access, PathRule

from .mac import Mac, mac, only_on_a_mac, outside

__all__ = ["mac"]
pytestmark = only_on_a_mac
DENIED = ("EPERM", "EACCES")

ALLOW_ALL = "(allow file-write* (require-all (subpath {root}) (vnode-type REGULAR-FILE)))"
ALLOW_NARROW = "(allow file-write-create (subpath {root}))"
DENY = "(deny {operations} (subpath {kept}))"


def touches(folder: Path, rules: str) -> bool:
    """Whether a file can be made in `folder/kept` under those rules; in `folder` itself it can."""
    root, kept = os.path.realpath(folder), os.path.realpath(folder / "kept")
    text = f"(version 1)(allow default)(deny file-write*){rules}"
    for place, value in (("root", root), ("kept", kept)):
        text = text.replace("{" + place + "}", '"' + value + '"')

    def run(name: str) -> bool:
        return outside("/usr/bin/sandbox-exec", "-p", text, "/usr/bin/touch", f"{folder}/{name}").returncode == 0

    assert run("free"), text
    return run("kept/new")


@pytest.mark.parametrize("allow", [ALLOW_ALL, ALLOW_NARROW], ids=["require-all", "narrow operation"])
def test_a_later_denial_of_every_named_operation_beats_an_allowance(mac: Mac, allow: str):
    (mac.repo / "kept").mkdir()
    both = "(allow file-write* (subpath {root}))" + allow
    assert not touches(mac.repo, both + DENY.replace("{operations}", "file-write* file-write-create"))


def test_core_files_are_not_written_for_a_worker(mac: Mac):
    assert mac.run(["/bin/sh", "-c", "ulimit -Hc; ulimit -c unlimited; ulimit -c"]).split()[0] == "0"


def test_folders_do_not_trade_names_with_one_above_a_protected_path(mac: Mac):
    (mac.repo / "sub/.git").mkdir(parents=True)
    (mac.repo / "a").mkdir()
    (mac.repo / "b").mkdir()
    said = mac.ask(
        """
        system = ctypes.CDLL(None, use_errno=True)
        def swap(one, other):
            if system.renamex_np(one.encode(), other.encode(), 2):
                raise OSError(ctypes.get_errno(), "")
        answers["above"] = says(lambda: swap("sub", "a"))
        answers["other way"] = says(lambda: swap("a", "sub"))
        answers["free"] = says(lambda: swap("a", "b"))
        """,
        protects=(PathRule(str(mac.repo / "sub/.git"), Access.READ, "dir"),),
    )
    assert said["free"] == "ok" and said["above"] in DENIED and said["other way"] in DENIED, said


def test_preferences_of_a_hidden_file_are_not_read_for_a_worker(mac: Mac):
    domain = f"skep.test.{os.getpid()}.read"
    file = Path.home() / "Library/Preferences" / f"{domain}.plist"
    outside("/usr/bin/defaults", "write", domain, "key", "hush")
    try:
        assert "hush" in outside("/usr/bin/defaults", "read", domain).stdout
        told = mac.run(["/usr/bin/defaults", "read", domain], hides=(PathRule(str(file), Access.HIDDEN, "file"),))
        assert "hush" not in told
    finally:
        outside("/usr/bin/defaults", "delete", domain)
        file.unlink(missing_ok=True)


def test_what_a_file_system_is_told_without_a_path_is_refused(mac: Mac):
    """FSIOC_SYNC_VOLUME, the most harmless of them; outside it works."""
    script = f"""
import ctypes, sys
system = ctypes.CDLL(None, use_errno=True)
flags = ctypes.c_uint32(0)
failed = system.fsctl({str(mac.outside)!r}.encode(), ctypes.c_ulong(0x80044101), ctypes.byref(flags), 0)
sys.exit(ctypes.get_errno() if failed else 0)
"""
    control = subprocess.run([*_python(), script], check=False).returncode
    if control:
        pytest.skip(f"not even outside: {os.strerror(control)}")
    mac.run([*_python(), script])
    assert mac.last is not None and mac.last.exit_code == 1  # EPERM


def _python() -> list[str]:
    import sys

    return [sys.executable, "-I", "-c"]
