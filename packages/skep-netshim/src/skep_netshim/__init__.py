"""Where the shim is. Nothing else: the program is `shim.py`, one file."""

from __future__ import annotations

import os

SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
"""Path of the program, to be run with `python3 -I -S`."""

__all__ = ["SHIM"]
