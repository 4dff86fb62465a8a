"""Where the shim is. Nothing else: the program is `shim.py`, one file."""

from __future__ import annotations

import os
import sys

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
"""Path of the program, to be run with `python3 -I -S`."""


def compiled() -> str | None:
    """Path of the program's bytecode for exactly this interpreter, which starts it in a third of the time; None where
    none can be kept. It lies where the import system keeps that of every module, by the same rules, and is made if need
    be.
    """
    own = sys.modules[__name__].__spec__
    if own is None or own.cached is None or own.loader is None:
        return None
    folder, name = os.path.split(own.cached)
    path = os.path.join(folder, "shim" + name[len("__init__") :])
    if not _is_current(path):
        if sys.dont_write_bytecode:
            return None
        try:
            type(own.loader)("shim", SHIM).get_code("shim")  # type: ignore[call-arg, attr-defined]
        except (ImportError, OSError, TypeError, AttributeError):
            return None
    return path if _is_current(path) else None


def _is_current(path: str) -> bool:
    """PEP 552: magic number, flags of 0, and the source's time and size."""
    from _frozen_importlib_external import MAGIC_NUMBER

    try:
        source = os.stat(SHIM)
        with open(path, "rb", buffering=0) as file:
            head = file.read(16)
    except OSError:
        return False
    stamps = b"".join((int(value) & 0xFFFFFFFF).to_bytes(4, "little") for value in (source.st_mtime, source.st_size))
    return head == MAGIC_NUMBER + bytes(4) + stamps


__all__ = ["SHIM", "compiled"]
