"""`--toolchain`: caches in the scratch, and the registries that the tools of the host are configured for."""

from __future__ import annotations

from .layers import caches, layers_for

__all__ = ["caches", "layers_for"]
