"""Does the boundary cost a download anything? The same clients outside through the proxy and inside the sandbox."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable

from .candidates import Server, proxies
from .load import GRACE, Done, Mode, Origin, Via, compiled, load_argv, read_report
from .measure import Broken, median
from .sandboxes import SKEP, environ
from .settings import Settings
from .table import markdown, missing, ratio, short

PROXY_PORT = 3128
"""Where the proxy is inside."""

ALONE = "skep-proxy alone"
FIGURES: tuple[tuple[str, Mode, int], ...] = (
    ("1 stream, GB/s", "stream", 1),
    ("8 streams, GB/s", "stream", 8),
    ("new tunnels per s at 32", "tunnels", 32),
)


def answer(settings: Settings) -> str:
    """The table, as Markdown."""
    programs = compiled(settings.cache)
    home, workspace = settings.scratch / "home", settings.scratch / "inside"
    home.mkdir(exist_ok=True)
    workspace.mkdir(exist_ok=True)
    shutil.copy2(programs / "load", workspace)
    env = environ(home)
    found: dict[str, dict[str, list[float]]] = {}
    broken: dict[str, str] = {}
    skep = proxies(1)[0]
    program = skep.find(settings.cache) or skep.program
    with contextlib.chdir(workspace), Origin(programs) as origin:
        for number in range(settings.rounds):
            settings.say(f"inside: round {number + 1} of {settings.rounds}")
            with Server(skep, program, origin.port, settings.fresh_folder()) as server:
                ways = _ways(origin.port, server.port)
                for name, (before, peer, via) in ways.items():
                    for figure, mode, clients in FIGURES:
                        argv = load_argv(
                            *(workspace / "load", mode),
                            peer=peer,
                            target=origin.port,
                            via=via,
                            clients=clients,
                            seconds=settings.seconds,
                        )
                        try:
                            value = _value(mode, _run([*before, *argv], env, settings.seconds))
                            found.setdefault(name, {}).setdefault(figure, []).append(value)
                        except Broken as problem:
                            broken[f"{name}, {figure}"] = str(problem)
    return "\n\n".join(["### Inside: the boundary against the proxy alone", _table(found), missing(broken)]).strip()


def _ways(target: int, proxy: int) -> dict[str, tuple[list[str], int, Via]]:
    """Words before the clients' own, the port they go to, and how."""
    listed = [SKEP, "exec", "--allow", f"127.0.0.1:{target}", "--"]
    service = [SKEP, "exec", "--allow", f"localhost:{target}", "--"]
    return {
        "direct": ([], target, "direct"),
        ALONE: ([], proxy, "connect"),
        "inside, by CONNECT": (listed, PROXY_PORT, "connect"),
        "inside, transparent": (service, target, "direct"),
    }


def _run(argv: list[str], env: dict[str, str], seconds: float) -> Done:
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds + GRACE
    )
    if done.returncode != 0:
        raise Broken(done.stderr.strip()[-300:])
    return read_report(done.stdout)


def _value(mode: Mode, done: Done) -> float:
    return done["bytes"] / done["seconds"] / 1e9 if mode == "stream" else done["done"] / done["seconds"]


def _table(found: dict[str, dict[str, list[float]]]) -> str:
    medians = {name: {figure: median(values) for figure, values in by.items()} for name, by in found.items()}
    alone = medians.get(ALONE, {})
    cells: Callable[[str], list[str]] = lambda name: [  # noqa: E731
        cell
        for figure, _, _ in FIGURES
        for cell in (
            (short(medians[name][figure]), ratio(medians[name][figure], alone.get(figure)))
            if figure in medians[name]
            else ("-", "-")
        )
    ]
    header = ["", *(cell for figure, _, _ in FIGURES for cell in (figure, "to the proxy alone"))]
    return markdown(header, [[name, *cells(name)] for name in medians])
