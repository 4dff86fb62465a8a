"""The worker's output on its way into the log."""

from __future__ import annotations

import os
from pathlib import Path

from skep_cli.relay import Relay


def test_a_launch_that_is_made_again_goes_on_with_the_same_relay(tmp_path: Path) -> None:
    """As a backend does when the kernel refuses a layer that can be done without."""
    relay = Relay(tmp_path / "log")
    relay.start()
    relay.start()
    os.write(relay.fd, b"said\n")
    relay.finish()
    assert (tmp_path / "log").read_bytes() == b"said\n"
