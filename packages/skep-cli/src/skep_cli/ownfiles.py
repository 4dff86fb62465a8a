"""What skep runs from has one name: an installer that links files from its cache (uv, where it can) gives the same file
to every environment, one in the workspace among them, and a worker that writes there would write what the next skep
runs.
"""

from __future__ import annotations

import os
import stat

from skep_bwrap.errors import BackendUnavailable
from skep_policy.aftermath import NEEDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def unshare(folders: Iterable[str]) -> None:
    """Of the modules in these folders of `sys.path` that a start of skep may run, every file of ours that had another
    name is a copy with none. Raises BackendUnavailable when one cannot be made.
    """
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        paths = [f"{folder}/{name}" for name in names if name.endswith(".pth")]
        wanted = NEEDED.union(*map(_imported, paths))
        paths += [f"{folder}/{name}" for name in names if name.partition(".")[0] in wanted]
        for path in paths:
            # Installers link a package as a whole. Its first file comes last, so that what was interrupted begins anew.
            first = f"{path}/__init__.py" if os.path.isdir(path) else path
            if _is_shared(first):
                for file in (*(file for file in _files(path) if file != first), first):
                    if _is_shared(file):
                        _replace(file)


def _imported(path: str) -> list[str]:
    """What a `.pth` file may have Python import at every start: all words of its lines that are code (site)."""
    try:
        with open(path, "rb") as file:
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.startswith("import")]
    except OSError:
        return []
    return [word.partition(".")[0] for line in lines for word in line.replace(";", " ").replace(",", " ").split()]


def _files(path: str) -> Iterator[str]:
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)


def _is_shared(path: str) -> bool:
    """A file of somebody else's is none that a worker could write."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_nlink > 1 and info.st_uid == os.geteuid()


def _replace(path: str) -> None:
    import shutil

    draft = f"{path}.{os.getpid()}"
    try:
        shutil.copy2(path, draft)
        os.replace(draft, path)
    except OSError as error:
        raise BackendUnavailable(
            f"{path}, which skep runs, has another name by which a worker could write it ({error.strerror})",
            fix="install skep with files of its own: `uv tool install --reinstall --link-mode copy skep-cli`",
            check="own-files",
        ) from None
