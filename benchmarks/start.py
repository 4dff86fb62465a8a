"""What does a start cost? One command in the boundary, beside what it is made of and what others do; and memory."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from . import library
from .measure import Cost, adopt_orphans, cost_of, descendants, end, interleaved, median, percentile, pss
from .sandboxes import Start, commands, environ, floors, others, ours
from .settings import Settings
from .table import markdown, missing, ratio, short

SETTLING = 2.0
"""Seconds until a sandbox with a sleeping command is taken to have started whatever it starts."""

ROOT = Path(__file__).parent.parent


def answer(settings: Settings) -> str:
    """The tables, as Markdown."""
    home, workspace = settings.scratch / "home", settings.scratch / "workspace"
    home.mkdir(exist_ok=True)
    workspace.mkdir(exist_ok=True)
    env = environ(home)
    elsewhere, absent = others(settings.cache, settings.scratch)
    elsewhere = [one for one in elsewhere if settings.wants(one.name)]
    with contextlib.chdir(workspace):
        settings.say("start: programs in turn")
        sandboxes = [*ours(), *elsewhere]
        times, broken = _times([*floors(), *sandboxes, *commands()], env, settings)
        settings.say("start: the library")
        warm = _library(settings, env)
        settings.say("start: memory")
        memory = {one.name: _memory(one, env) for one in sandboxes if one.name in times}
    parts = ["### Start: from nothing to the end of `true`", _time_table(times)]
    parts += ["### Start: the library, in a warm process", warm]
    parts += ["### Memory (PSS) while a sandboxed `sleep` runs, without the `sleep`", _memory_table(memory)]
    if broken or absent:
        parts.append(missing({**absent, **broken}))
    return "\n\n".join(parts)


def _times(
    starts: Sequence[Start], env: Mapping[str, str], settings: Settings
) -> tuple[dict[str, list[Cost]], dict[str, str]]:
    log = str(settings.scratch / "errors")
    adopt_orphans()
    actions = {one.name: partial(cost_of, one.argv, env, log=log, orphans=True) for one in starts}
    return interleaved(actions, settings.size.starts, seconds=settings.size.budget)


def _time_table(costs: Mapping[str, Sequence[Cost]]) -> str:
    """The best time and the CPU time suffer least from what else the machine does."""
    medians = {name: median([cost.wall for cost in found]) * 1000 for name, found in costs.items()}
    python = medians.get("`python3 -c pass`")
    bwrap = medians.get("bwrap, all namespaces")
    rows = [
        [
            name,
            short(medians[name]),
            short(percentile([cost.wall for cost in found], 0.9) * 1000),
            short(min(cost.wall for cost in found) * 1000),
            short(median([cost.cpu for cost in found]) * 1000),
            ratio(medians[name], python),
            ratio(medians[name], bwrap),
            str(len(found)),
        ]
        for name, found in costs.items()
    ]
    return markdown(["", "median ms", "p90 ms", "best ms", "CPU ms", "to `python3 -c pass`", "to bwrap", "times"], rows)


def _library(settings: Settings, env: Mapping[str, str]) -> str:
    """The child runs in the current folder."""
    count = settings.size.row
    argv = [sys.executable, "-m", library.__name__, str(count)]
    limit = 60 + count * 0.5
    try:
        done = subprocess.run(
            argv, env={**env, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return f"Not measured: over {limit:g} s."
    if done.returncode != 0:
        return f"Not measured: {done.stderr.decode(errors='replace').strip()[-300:]}"
    found: library.Found = json.loads(done.stdout)
    rows = [
        [f"{count:,} in a row", *_pair(found["ours"], found["bwrap"])],
        [f"{count:,}, {library.AT_ONCE} at a time", *_pair(found["ours_at_once"], found["bwrap_at_once"])],
    ]
    (fds, fds_after), (memory, memory_after) = found["descriptors"], found["memory"]
    leak = (
        f"Of the process itself, before and after: {fds} and {fds_after} descriptors, "
        f"{memory >> 20} and {memory_after >> 20} MiB."
    )
    return markdown(["ms per command", "skep_bwrap.run", "bwrap", "ratio"], rows) + "\n\n" + leak


def _pair(mine: float, bare: float) -> list[str]:
    return [short(mine * 1000), short(bare * 1000), ratio(mine, bare)]


def _memory(one: Start, env: Mapping[str, str]) -> tuple[float, int] | None:
    """MiB and processes of a sandbox around a sleeping command, that command left out; None when it does not sleep."""
    process = subprocess.Popen(
        [*one.before, "sleep", "30"],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(SETTLING)
        pids = descendants(process.pid)
        rest = [pid for pid in pids if _name(pid) != "sleep"]
        if len(rest) == len(pids):
            return None
        return pss(rest) / (1 << 20), len(rest)
    finally:
        end(process.pid)
        process.returncode = 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _memory_table(memory: Mapping[str, tuple[float, int] | None]) -> str:
    rows = [[name, *((short(found[0]), str(found[1])) if found else ("-", "-"))] for name, found in memory.items()]
    return markdown(["", "MiB", "processes"], rows)
