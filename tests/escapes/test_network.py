"""The worker reaches no network but what the policy lists. Names are answered by a table, not by a resolver."""

from __future__ import annotations

import http.server
import os
import shlex
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import skep_bwrap
from skep_policy import Decision, EgressEvent, Facts, Layer, merge, parse_policy, replace, resolve
from skep_proxy import Proxy

from .worker import PYTHON, Worker

pytestmark = pytest.mark.sandbox

CURL = "curl -sS -m 60"
WAYS = {
    "by the proxy variables": CURL,
    "by CONNECT": f"{CURL} --proxytunnel --proxy http://127.0.0.1:3128",
    "by SOCKS": f"{CURL} --proxy socks5h://127.0.0.1:3128",
    "knowing no proxy": f"{CURL} --noproxy '*'",
}


class Origin(http.server.ThreadingHTTPServer):
    """An HTTP server on loopback that remembers what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.port = self.server_port
        self.requests: list[str] = []


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Origin  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.requests.append(f"{self.headers['Host']} {self.path}")
        self.send_response(200)
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"origin ok")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        thread = threading.Thread(target=origin.serve_forever, args=(0.05,))
        thread.start()
        yield origin
        origin.shutdown()
        thread.join()


class Seen(NamedTuple):
    """What the worker printed, what the proxy decided, and the names it looked up."""

    output: str
    events: list[EgressEvent]
    lookups: list[str]

    def decided(self, host: str) -> set[tuple[bool, str]]:
        decisions = [event for event in self.events if isinstance(event, Decision) and event.host == host]
        return {(decision.verdict.allow, decision.verdict.reason) for decision in decisions}


def browse(worker: Worker, policy: str, script: str, names: dict[str, list[list[str]]]) -> Seen:
    """Run `script` under `policy`. `names` gives the answers to the first, second, ... lookup of each name."""
    layer = Layer("test", parse_policy(policy, source="test"))
    facts = replace(Facts.gather(), cwd=str(worker.workspace), environ=worker.environ())
    boundary = resolve(merge([layer]), facts=facts, workspace=str(worker.workspace))
    events: list[EgressEvent] = []
    lookups: list[str] = []

    def answer(host: str, port: int) -> list[str]:
        lookups.append(host)
        answers = names.get(host)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return answers[min(lookups.count(host), len(answers)) - 1]

    path = worker.outside / "output"
    output = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    try:
        with Proxy(on_event=events.append, resolve=answer) as proxy, proxy.connect(boundary.rules) as connection:
            skep_bwrap.run(boundary, ["sh", "-c", script], proxy=connection, stdout=output, stderr=output)
    finally:
        os.close(output)
    return Seen(path.read_text(), events, lookups)


def listed(origin: Origin, *, deny: str = "") -> str:
    return f'network = {{ allow = ["*.test:{origin.port}"], deny = [{deny}], private = ["good.test"] }}'


NAMES = {"good.test": [["127.0.0.1"]], "bad.test": [["127.0.0.1"]]}


@pytest.mark.guarantee("net-nothing")
def test_with_an_empty_list_nothing_is_reached(worker: Worker, origin: Origin) -> None:
    url = f"http://127.0.0.1:{origin.port}/"
    assert "origin ok" in worker.sh(f"{CURL} {url}", "--allow", f"127.0.0.1:{origin.port}")
    seen = len(origin.requests)
    for way in (CURL, WAYS["knowing no proxy"]):
        assert "origin ok" not in worker.sh(f"{way} {url}; true")
    assert len(origin.requests) == seen


@pytest.mark.guarantee("net-nothing")
def test_with_an_empty_list_no_name_is_resolved_and_there_is_no_route(worker: Worker) -> None:
    assert worker.attempt("socket.getaddrinfo('example.com', 443)").startswith(("[Errno", "EAI"))
    # Every address is the sandbox's own; where the kernel refuses that route, there is none at all. A connection is
    # taken by the proxy, which cuts it, and refused by the kernel where that has no nf_tables.
    for address, family in (("192.0.2.1", "AF_INET"), ("2001:db8::1", "AF_INET6")):
        connected = f"s = socket.socket(socket.{family}, socket.SOCK_DGRAM); s.connect(({address!r}, 9))"
        send = f"{connected}; s.send(b'x'); s.send(b'x')"
        assert worker.attempt(send) in ("ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL")
        connect = f"socket.create_connection(({address!r}, 9), 60).recv(1)"
        assert worker.attempt(connect) in ("ECONNRESET", "ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL")
    raw = "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    assert worker.attempt(raw) in ("EPERM", "EACCES", "EAFNOSUPPORT")


@pytest.mark.guarantee("net-listed")
@pytest.mark.parametrize("way", WAYS)
def test_listed_hosts_are_reached_and_no_others(worker: Worker, origin: Origin, way: str) -> None:
    policy = f'network = {{ allow = ["good.test:{origin.port}"], private = ["good.test", "bad.test"] }}'
    good = browse(worker, policy, f"{WAYS[way]} http://good.test:{origin.port}/", NAMES)
    assert "origin ok" in good.output
    assert origin.requests == [f"good.test:{origin.port} /"]
    bad = browse(worker, policy, f"{WAYS[way]} http://bad.test:{origin.port}/", NAMES)
    assert "origin ok" not in bad.output
    other_port = browse(worker, policy, f"{WAYS[way]} http://good.test:1/", NAMES)
    assert "origin ok" not in other_port.output
    assert len(origin.requests) == 1
    assert bad.lookups == [] and other_port.lookups == []


@pytest.mark.guarantee("net-listed")
@pytest.mark.parametrize("way", WAYS)
def test_an_address_is_not_reached_by_listing_a_name_that_has_it(worker: Worker, origin: Origin, way: str) -> None:
    policy = f'network = {{ allow = ["good.test:{origin.port}"], private = ["good.test"] }}'
    seen = browse(worker, policy, f"{WAYS[way]} http://127.0.0.1:{origin.port}/ -H 'Host: good.test'", NAMES)
    assert "origin ok" not in seen.output and origin.requests == []


@pytest.mark.guarantee("net-deny")
@pytest.mark.parametrize("way", WAYS)
def test_a_deny_rule_beats_every_allow_rule(worker: Worker, origin: Origin, way: str) -> None:
    script = f"{WAYS[way]} http://good.test:{origin.port}/"
    denied = browse(worker, listed(origin, deny='"good.test"'), script, NAMES)
    assert "origin ok" not in denied.output and origin.requests == [] and denied.lookups == []
    assert "origin ok" in browse(worker, listed(origin), script, NAMES).output


CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128), 60) as proxy:
    proxy.sendall(b"CONNECT %s HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
    print(proxy.recv(4096).split(b"\\r\\n")[0].decode())
"""


@pytest.mark.guarantee("net-deny")
@pytest.mark.parametrize(
    "host", ["127.1", "0x7f.1", "2130706433", "[::1%25lo]", "user@good.test", "good.test%2ebad.test"]
)
def test_a_host_without_a_normal_form_is_denied_and_never_looked_up(worker: Worker, origin: Origin, host: str) -> None:
    connect = f"{PYTHON} -c {shlex.quote(CONNECT)}"
    seen = browse(worker, listed(origin), f"{connect} {shlex.quote(host)}:{origin.port}", NAMES)
    assert seen.output.split()[1] in ("400", "403")
    assert seen.lookups == [] and origin.requests == []
    assert browse(worker, listed(origin), f"{connect} good.test:{origin.port}", NAMES).output.split()[1] == "200"


@pytest.mark.guarantee("net-private")
@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254"])
def test_a_name_that_leads_inside_is_denied_unless_it_may(worker: Worker, origin: Origin, address: str) -> None:
    seen = browse(worker, listed(origin), f"{CURL} http://sneaky.test:{origin.port}/", {"sneaky.test": [[address]]})
    assert "origin ok" not in seen.output and origin.requests == []
    assert (False, "private-address") in seen.decided("sneaky.test")
    assert "origin ok" in browse(worker, listed(origin), f"{CURL} http://good.test:{origin.port}/", NAMES).output


@pytest.mark.guarantee("net-pinned")
def test_the_address_that_was_checked_is_the_one_dialled(worker: Worker, origin: Origin) -> None:
    answers = {"good.test": [["127.0.0.1"], ["192.0.2.1"]]}
    seen = browse(worker, listed(origin), f"{CURL} http://good.test:{origin.port}/", answers)
    assert "origin ok" in seen.output and seen.lookups == ["good.test"]


@pytest.mark.guarantee("net-requests")
def test_every_request_of_a_kept_connection_is_decided(worker: Worker, origin: Origin) -> None:
    policy = f'network = {{ allow = ["good.test:{origin.port}"], private = ["good.test", "bad.test"] }}'
    urls = " ".join(f"-o /dev/null http://{host}.test:{origin.port}/" for host in ("good", "bad", "good"))
    seen = browse(worker, policy, f"{CURL} -w '%{{http_code}}+%{{num_connects}} ' {urls}", NAMES)
    assert seen.output.split() == ["200+1", "403+0", "200+0"]
    assert origin.requests == [f"good.test:{origin.port} /"] * 2
    assert seen.decided("bad.test") == {(False, "not-listed")}
