"""Where the shim is. Nothing else: the program is `shim.py`, one file."""

from __future__ import annotations

import os
import sys

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
"""Path of the program, to be run with `python3 -I -S`."""


def compiled(source: str = SHIM) -> str | None:
    """Path of a program's bytecode for exactly this interpreter, which starts it in a third of the time; None where
    none can be kept. It lies where the import system keeps that of every module, by the same rules, and is made if need
    be.
    """
    from _frozen_importlib_external import SourceFileLoader, cache_from_source

    try:
        path = cache_from_source(source)
        if not _is_current(path, source) and not sys.dont_write_bytecode:
            SourceFileLoader("program", source).get_code("program")
    except (ImportError, OSError, NotImplementedError):
        return None
    return path if _is_current(path, source) else None


def _is_current(path: str, source: str) -> bool:
    """PEP 552: magic number, flags of 0, and the source's time and size."""
    from _frozen_importlib_external import MAGIC_NUMBER

    try:
        info = os.stat(source)
        with open(path, "rb", buffering=0) as file:
            head = file.read(16)
    except OSError:
        return False
    stamps = b"".join((int(value) & 0xFFFFFFFF).to_bytes(4, "little") for value in (info.st_mtime, info.st_size))
    return head == MAGIC_NUMBER + bytes(4) + stamps


__all__ = ["SHIM", "compiled"]
