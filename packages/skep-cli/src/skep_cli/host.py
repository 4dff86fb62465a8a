"""Which system a command runs on: a fact, given from outside, so that a test can go another system's way."""

from __future__ import annotations

import sys

from skep_policy.value import Value, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from skep_policy.boundary import Boundary


class Host(Value):
    """`platform` as `sys.platform`. `sandbox_exec`, `log` and `xcode_select` are where macOS has these, and `uid` is
    the user the boundary is for (None: of this process); only tests say otherwise.
    """

    platform: str = sys.platform
    sandbox_exec: str = "/usr/bin/sandbox-exec"
    log: str = "/usr/bin/log"
    xcode_select: str = "/usr/bin/xcode-select"
    uid: int | None = None

    @property
    def backend(self) -> str | None:
        """The name of what applies a boundary here, None where nothing does."""
        return BACKENDS.get(self.platform)

    def boundary(self, made: Boundary) -> Boundary:
        """The boundary as this machine would be given it."""
        return made if self.uid is None else replace(made, uid=self.uid)

    @property
    def missing(self) -> str:
        """Why there is no backend."""
        return f"no boundary can be applied on {self.platform}"


BACKENDS: Final = {"linux": "bwrap", "darwin": "seatbelt"}

NO_BACKEND_FIX: Final = "run it on Linux or macOS"

HERE: Final = Host()
