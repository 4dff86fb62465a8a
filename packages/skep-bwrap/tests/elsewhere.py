"""A box where mounts differ from this machine's: without cgroups, on a small disk. Also the program that runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

WITHOUT_CGROUPS = "mount -t tmpfs -o ro none /sys/fs/cgroup"


class Told(NamedTuple):
    code: int
    limit: str | None
    layers: dict[str, Any]
    out: str
    err: str


def elsewhere(base: Path, bwrap: str, mount: str, script: str, **limits: Any) -> Told:
    """What becomes of a Python script, run in a mount namespace after the command `mount`. The box's folder is `base`,
    which `mount` may cover. Raises AssertionError with its words when no sandbox was started.
    """
    inner = [sys.executable, __file__, str(base), bwrap, script, json.dumps(limits)]
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run([*unshare, "sh", "-c", f'{mount} && exec "$@"', "sh", *inner], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Told(*json.loads(done.stdout))


def main() -> None:
    sys.path.append(os.path.dirname(__file__))
    from box import Box  # type: ignore[import-not-found]  # pyright: ignore
    from skep_policy.boundary import Limits

    base, bwrap, script, limits = sys.argv[1:]
    result: Any = Box(Path(base), bwrap).python(script, limits=Limits(**{"wall": 120.0, **json.loads(limits)}))  # pyright: ignore
    outcome = result.outcome
    print(json.dumps([outcome.exit_code, outcome.limit, outcome.layers, result.out, result.err]))


if __name__ == "__main__":
    main()
