"""Each client reaches the origin that is allowed, and is told at once of the one that is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .kinds import CLIENTS, Client
from .origins import BAD, GOOD, MARKER
from .stage import PROXY_VARIABLES, Seen, Stage, version_of, which

pytestmark = pytest.mark.sandbox

DOCUMENT = Path(__file__).parents[2] / "docs/clients.md"
PATIENCE = 120
"""Seconds after which a client that was denied counts as one that hangs; each is done in a few on a quiet machine."""

BARE = "unset " + " ".join(PROXY_VARIABLES) + " NODE_USE_ENV_PROXY; "
WAYS = {"as it comes": "", "variables unset": BARE, "no transparent egress": ""}
RESULTS: dict[tuple[str, str], str] = {}


def skip_what_is_missing(client: Client) -> None:
    missing = [program for program in client.needs if which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")


def run(stage: Stage, client: Client, way: str, host: str) -> Seen:
    script = WAYS[way] + stage.words(client, host)
    flags = ("--wall", f"{PATIENCE}s")
    return stage.exec(script, *flags, weakened="no route" if way == "no transparent egress" else None)


def works_without_transparent_egress(client: Client, stage: Stage) -> bool:
    if client.explicit.startswith("Node "):
        return int(version_of(client).split(".")[0]) >= int(client.explicit.removeprefix("Node "))
    return client.explicit != "no"


Waiting = dict[tuple[str, str], Future[Seen]]


@pytest.fixture(scope="module")
def waiting(stage: Stage) -> Iterator[Waiting]:
    """What becomes of those that ask for the denied host again and again. All at a time: they do little but wait."""
    patient = [client for client in CLIENTS if client.asks_again and all(map(which, client.needs))]
    with ThreadPoolExecutor(9) as pool:
        yield {(client.name, way): pool.submit(run, stage, client, way, BAD) for client in patient for way in WAYS}


@pytest.mark.guarantee("net-listed")
@pytest.mark.guarantee("record-egress")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_reaches_what_is_allowed_and_nothing_else(
    stage: Stage, client: Client, way: str, request: pytest.FixtureRequest
) -> None:
    skip_what_is_missing(client)
    reaches = way != "no transparent egress" or works_without_transparent_egress(client, stage)
    good = run(stage, client, way, GOOD)
    if reaches:
        assert MARKER in good.output, good.output + good.error
        assert GOOD in {host for host, _ in good.allowed()}
    else:
        assert MARKER not in good.output and good.code not in (0, 124, 125), good.output + good.error
    waiting: Waiting = request.getfixturevalue("waiting") if client.asks_again else {}
    asked = waiting.get((client.name, way))
    bad = asked.result() if asked else run(stage, client, way, BAD)
    assert MARKER not in bad.output and bad.code not in (0, 124, 125), (bad.code, bad.output + bad.error)
    assert BAD not in {host for host, _ in bad.allowed()}
    if reaches:
        assert BAD in bad.denied() and f"--allow {BAD}" in bad.error, bad.error
    RESULTS[client.name, way] = "works" if reaches else "no"


HEADER = ("client", "tried with", "as it comes", "proxy variables unset", "no transparent egress")
BEFORE = """# Clients

Each of these was run by `skep exec` to a host that is allowed, which works, and to one that is not, which fails in
seconds and stands in the report with the flag that would allow it. Three ways: as it comes; with the proxy variables
unset, so that only transparent egress leads out; and where the kernel gives the sandbox no route (`transparent` in the
report's layers then says why), so that only the proxy's own port does.

The table is written by the tests that it is about: `SKEP_WRITE_CLIENTS=1 uv run python -m pytest tests/clients`.

"""
AFTER = """
Where there is no transparent egress:

- git over ssh goes through a helper of skep's by `GIT_SSH_COMMAND`; for ssh itself it is
  `ssh -o ProxyCommand="$SKEP_PROXY_COMMAND" HOST`. Both variables are set then, and only then.
- JVMs are led by `JAVA_TOOL_OPTIONS`, Node from 24 on by `NODE_USE_ENV_PROXY`, aiohttp by `trust_env=True`.
- A program that knows of no proxy gets "cannot resolve" at once, and that is not in the report: nobody was asked.

Where the kernel has no nf_tables (`every-port` in the report's layers then says so), programs that know of no proxy
reach the ports that rules name (100 at most, and for `host:*` the ports 22, 80, 443, 5432, 8080 and 8443). A connection
to another is refused by the kernel inside, at once, and is not in the report.

Everywhere: npm asks a second and a third time after 1 and 5 seconds (its own 10 and 60 are lowered),
pip and uv for up to ten seconds; nothing that is denied is retried for minutes.

psql speaks to PostgreSQL's own server where one is installed, as in CI, else to a small one of the tests' own. Go is
told of the test's registry by `GOPROXY`; the sum database is left out by `GONOSUMDB`.

Certificates: what a private authority signs needs its file where the client looks, for most one of `SSL_CERT_FILE`,
`CURL_CA_BUNDLE`, `REQUESTS_CA_BUNDLE`, `NODE_EXTRA_CA_CERTS` and `GIT_SSL_CAINFO` (`[env] pass` or `set`). skep
decrypts nothing and brings no authority of its own.
"""


def cells(client: Client) -> tuple[str, str, str]:
    last = {"yes": "works", "helper": "works, by `SKEP_PROXY_COMMAND`", "no": "no"}
    return "works", "works", last.get(client.explicit, f"from {client.explicit}")


def rows(text: str) -> list[tuple[str, ...]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def written() -> str:
    missing = {client.name for client in CLIENTS for program in client.needs if which(program) is None}
    tried = {client.name for client in CLIENTS if all((client.name, way) in RESULTS for way in WAYS)}
    assert {client.name for client in CLIENTS} == tried | missing, "run all of them to write the table"
    table = [HEADER, ("---",) * len(HEADER)]
    for client in CLIENTS:
        version = version_of(client) if client.name in tried else "not installed there"
        table.append((client.name, version, *cells(client)))
    return BEFORE + "".join(f"| {' | '.join(row)} |\n" for row in table) + AFTER


def test_the_table_in_the_documentation_is_this_one() -> None:
    """With SKEP_WRITE_CLIENTS it is made of what ran before."""
    if os.environ.get("SKEP_WRITE_CLIENTS"):
        DOCUMENT.write_text(written())
    text = DOCUMENT.read_text()
    assert text.startswith(BEFORE) and text.endswith(AFTER)
    header, _, *found = rows(text)
    assert header == HEADER
    assert [(row[0], *row[2:]) for row in found] == [(client.name, *cells(client)) for client in CLIENTS]
