"""Run an untrusted worker inside the operating system's own sandbox and get a verified patch back.

The command `skep` is the interface; nothing here is meant to be imported by others.
"""

from __future__ import annotations

__all__: list[str] = []
