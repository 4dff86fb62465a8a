"""What does a tunnel cost? Throughput, CPU per GiB, new tunnels, requests and memory of forward proxies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from .candidates import Candidate, Server, proxies
from .load import Done, Held, Mode, Origin, compiled, drive, load_argv
from .measure import Broken, median
from .settings import Settings
from .table import markdown, missing, ratio, short

GIB = 1 << 30
DIRECT = "direct"

STREAMS = (1, 8)
CLIENTS = (1, 32, 256)
KEPT = 32

OPENING = 10.0
"""Seconds that the idle tunnels have to open."""


@dataclass
class Sample:
    """Every figure of one candidate in one round, by name. `wrong` counts errors by the same names."""

    figures: dict[str, float] = field(default_factory=dict[str, float])
    wrong: dict[str, int] = field(default_factory=dict[str, int])


def answer(settings: Settings) -> str:
    """The tables, as Markdown."""
    candidates = [one for one in proxies(max(2, os.cpu_count() or 2)) if settings.wants(one.name)]
    samples: dict[str, list[Sample]] = {DIRECT: [], **{one.name: [] for one in candidates}}
    absent: dict[str, str] = {}
    programs = compiled(settings.cache)
    with Origin(programs) as origin:
        for number in range(settings.rounds):
            settings.say(f"round {number + 1} of {settings.rounds}: {DIRECT}")
            samples[DIRECT].append(_measure(None, origin.port, programs, settings))
            for one in candidates:
                program = one.find(settings.cache)
                if program is None:
                    absent[one.name] = f"`{one.program}` is not installed"
                    continue
                settings.say(f"round {number + 1} of {settings.rounds}: {one.name}")
                try:
                    with Server(one, program, origin.port, settings.fresh_folder()) as server:
                        samples[one.name].append(_measure(server, origin.port, programs, settings))
                        settings.say(f"  {_line(samples[one.name][-1])}")
                except Broken as problem:
                    absent[one.name] = str(problem)
    medians = {name: _medians(found) for name, found in samples.items() if found}
    return "\n\n".join(_report(medians, absent, _notes(candidates, medians, settings)))


def _measure(server: Server | None, target: int, programs: Path, settings: Settings) -> Sample:
    """One round of one candidate; of the direct connection when there is no server."""
    sample = Sample()
    port = server.port if server else target

    def run(name: str, mode: Mode, clients: int) -> tuple[Done, float] | None:
        via = "direct" if server is None else server.candidate.plain if mode == "requests" else server.candidate.tunnel
        before = server.cpu() if server else 0.0
        try:
            done = drive(
                programs / "load", mode, peer=port, target=target, via=via, clients=clients, seconds=settings.seconds
            )
        except Broken as problem:
            settings.say(f"  {name}: {problem}")
            return None
        if done["errors"]:
            settings.say(f"  {name}: {done['errors']} errors, the last one: {done['last_error']}")
        sample.wrong[name] = done["errors"]
        return done, (server.cpu() - before) if server else 0.0

    for streams in STREAMS:
        if found := run(f"stream {streams}", "stream", streams):
            done, cpu = found
            sample.figures[f"stream {streams}"] = done["bytes"] / done["seconds"] / 1e9
            sample.figures[f"cpu {streams}"] = cpu / (done["bytes"] / GIB)
    rates: list[tuple[Mode, int]] = [*(("tunnels", clients) for clients in CLIENTS), ("requests", KEPT)]
    for mode, clients in rates:
        name = f"{mode} {clients}"
        if (found := run(name, mode, clients)) and found[0]["done"]:
            done, cpu = found
            sample.figures[name] = done["done"] / done["seconds"]
            sample.figures[f"{name} p50"] = done["p50_us"] / 1000
            sample.figures[f"{name} p99"] = done["p99_us"] / 1000
            sample.figures[f"{name} cpu"] = cpu / done["done"] * 1e6
    if server is not None:
        _hold(server, target, programs, settings, sample)
    return sample


def _hold(server: Server, target: int, programs: Path, settings: Settings, sample: Sample) -> None:
    """Memory without tunnels and with some that are idle; none when fewer could be opened in time."""
    for count in settings.idle:
        argv = load_argv(
            *(programs / "load", "hold"),
            peer=server.port,
            target=target,
            via=server.candidate.tunnel,
            clients=count,
            seconds=OPENING,
        )
        held = Held(argv) if count else None
        with held or nullcontext():
            if held is None or held.count == count:
                sample.figures[f"idle {count}"] = server.memory() / (1 << 20)
            else:
                settings.say(f"  only {held.count} of {count} tunnels were open after {OPENING:g} s")
        sample.wrong[f"idle {count}"] = held.broken if held else 0


def _line(sample: Sample) -> str:
    """All figures of one round, so that nothing is lost of a run that is cut short."""
    return ", ".join(f"{name} {short(value)}" for name, value in sample.figures.items())


def _medians(samples: list[Sample]) -> Sample:
    names = {name for sample in samples for name in sample.figures}
    figures = {name: median([s.figures[name] for s in samples if name in s.figures]) for name in names}
    wrong = {name: sum(sample.wrong.get(name, 0) for sample in samples) for name in names}
    return Sample(figures, wrong)


def _report(medians: Mapping[str, Sample], absent: dict[str, str], notes: str) -> Iterator[str]:
    direct = medians[DIRECT].figures

    def table(header: list[str], cells: Callable[[str, Sample], list[str]], *, without_direct: bool = False) -> str:
        shown = {name: sample for name, sample in medians.items() if name != DIRECT or not without_direct}
        return markdown(header, [[name, *cells(name, sample)] for name, sample in shown.items()])

    yield "### Proxy: bytes through a tunnel"
    header = ["", *(f"{n} {'stream' if n == 1 else 'streams'}, GB/s" for n in STREAMS)]
    header[2:2] = ["to direct"]
    header += ["to direct", *(f"CPU s/GiB at {n}" for n in STREAMS)]
    yield table(
        header,
        lambda name, sample: [
            *(cell for n in STREAMS for cell in (_cell(sample, f"stream {n}"), _to(sample, direct, f"stream {n}"))),
            *("" if name == DIRECT else _cell(sample, f"cpu {n}") for n in STREAMS),
        ],
    )
    yield "### Proxy: new tunnels, each with one request of 200 bytes"
    yield table(
        ["", *(f"{what} at {n}" for n in CLIENTS for what in ("per s", "p50/p99 ms")), "CPU us each at 32"],
        lambda name, sample: [
            *(cell for n in CLIENTS for cell in (_cell(sample, f"tunnels {n}"), _spread(sample, f"tunnels {n}"))),
            "" if name == DIRECT else _cell(sample, "tunnels 32 cpu"),
        ],
    )
    yield f"### Proxy: plain HTTP requests at {KEPT} clients that keep their connection"
    yield table(
        ["", "per s", "p50/p99 ms", "CPU us each"],
        lambda name, sample: [
            *(_cell(sample, f"requests {KEPT}"), _spread(sample, f"requests {KEPT}")),
            "" if name == DIRECT else _cell(sample, f"requests {KEPT} cpu"),
        ],
    )
    idle = sorted({int(name.split()[1]) for s in medians.values() for name in s.figures if name.startswith("idle")})
    if idle:
        yield "### Proxy: memory (PSS) by idle tunnels"
        yield table(
            ["", *(f"{count:,}, MiB" for count in idle), "KiB a tunnel"],
            lambda _, sample: [*(_cell(sample, f"idle {count}") for count in idle), _each(sample, idle)],
            without_direct=True,
        )
    yield notes
    if absent:
        yield missing(absent)


def _cell(sample: Sample, name: str) -> str:
    """A median; with the number of errors behind it when there were any."""
    if name not in sample.figures:
        return "-"
    wrong = sample.wrong.get(name, 0)
    return short(sample.figures[name]) + (f" ({wrong} errors)" if wrong else "")


def _to(sample: Sample, direct: Mapping[str, float], name: str) -> str:
    return ratio(sample.figures[name], direct.get(name)) if name in sample.figures else "-"


def _spread(sample: Sample, name: str) -> str:
    if name not in sample.figures:
        return "-"
    return f"{short(sample.figures[f'{name} p50'])}/{short(sample.figures[f'{name} p99'])}"


def _each(sample: Sample, idle: list[int]) -> str:
    first, last = sample.figures.get(f"idle {idle[0]}"), sample.figures.get(f"idle {idle[-1]}")
    if first is None or last is None or idle[-1] == idle[0]:
        return "-"
    return short((last - first) * 1024 / (idle[-1] - idle[0]))


def _notes(candidates: list[Candidate], medians: Mapping[str, Sample], settings: Settings) -> str:
    """What was compared."""
    lines: list[str] = []
    for one in candidates:
        program = one.find(settings.cache) if one.name in medians else None
        if program is not None and one.version:
            lines.append(f"- {one.name}: {one.says(program)}{f'; {one.note}' if one.note else ''}")
    how = f"Medians of {settings.rounds} rounds, {settings.seconds:g} s a figure; clients and origin share the cores."
    return "\n".join([how, "", *lines])
