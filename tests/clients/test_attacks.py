"""From inside, by someone who has read the source: other ways to a host, other names for it, and too much of all."""

from __future__ import annotations

import json
import resource
import shlex

import pytest

from .origins import BAD, GOOD, MARKER
from .stage import Seen, Stage

pytestmark = pytest.mark.sandbox

COMMON = """
import socket, struct, sys

def talk(address, data, patience=60):
    "What is answered to data, or the name of the error."
    try:
        with socket.create_connection(address, patience) as sock:
            sock.settimeout(patience)
            sock.sendall(data)
            answer = b""
            while block := sock.recv(65536):
                answer += block
            return answer
    except OSError as error:
        return type(error).__name__.encode()

def connect(target, then=b"who are you\\n"):
    return talk(("127.0.0.1", 3128), b"CONNECT " + target.encode() + b" HTTP/1.1\\r\\n\\r\\n" + then)

def lookup(name, server, kind=1):
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    query = struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)
    with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(60)
        sock.connect((server, 53))
        sock.send(query)
        answer = sock.recv(1000)
    if answer[3] & 15:
        return f"error {answer[3] & 15}"
    return socket.inet_ntop(*((socket.AF_INET, answer[-4:]) if kind == 1 else (socket.AF_INET6, answer[-16:])))
"""


def inside(stage: Stage, code: str, *flags: str, weakened: str | None = None, descriptors: int | None = None) -> Seen:
    script = f"{stage.python} -c {shlex.quote(COMMON + code)}"
    seen = stage.exec(script, "--wall", "200s", *flags, weakened=weakened, descriptors=descriptors)
    assert seen.code == 0, seen.error
    return seen


@pytest.mark.guarantee("net-listed")
def test_no_spelling_of_this_machine_is_a_way_to_it(stage: Stage) -> None:
    port = stage.ports.lines
    spellings = [
        *("127.0.0.1", "localhost", "a.localhost", "[::1]", "0.0.0.0", "[::]", "127.1", "0x7f000001", "2130706433"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1.", "0177.0.0.1"),
        *("169.254.169.254", "10.0.0.1", "[fe80::1]", "[fd5b:6b65:7000::1]", "198.18.0.1", BAD, f"x.{GOOD}"),
        *(f"{GOOD}.{BAD}", f"{GOOD}@{BAD}", f"{BAD}#{GOOD}", f"{GOOD}%00.{BAD}", "１２７．０．０．１"),
    ]
    code = f"""
for spelling in {spellings!r}:
    for target in (f"{{spelling}}:{port}", f"{{spelling}}:0{port}", f"{{spelling}}:3128"):
        answer = connect(target) + talk(("127.0.0.1", 3128),
            b"GET http://" + target.encode() + b"/hello HTTP/1.1\\r\\nHost: {GOOD}\\r\\nConnection: close\\r\\n\\r\\n")
        assert b"HTTP/1.1 200" not in answer, (target, answer)
print(connect("{GOOD}:{port}").decode())
print(connect("{GOOD.upper()}.:{port}").decode())
"""
    seen = inside(stage, code)
    assert seen.output.count(MARKER) == 2
    assert seen.allowed() == {(GOOD, port)}


@pytest.mark.guarantee("net-listed")
def test_an_address_that_nobody_was_given_leads_nowhere_and_is_recorded(stage: Stage) -> None:
    port = stage.ports.lines
    others = ["198.18.77.7", "198.19.255.255", "fd5b:6b65:7000::7777", "fd5b:6b65:7000:1::1", "127.0.0.1", "127.9.9.9"]
    others += ["::1", "10.0.0.1", "8.8.8.8", "2001:db8::1", "0.0.0.0", "::ffff:127.0.0.1"]
    code = f"""
mine = socket.getaddrinfo("{GOOD}", {port}, type=socket.SOCK_STREAM)
print([talk(address[:2], b"who are you\\n").decode() for *_, address in mine])
for other in {others!r}:
    print("other", talk((other, {port}), b"who are you\\n").decode())
for *_, address in mine:
    print("other", talk((address[0], 1), b"who are you\\n").decode())
"""
    seen = inside(stage, code)
    first, *rest = seen.output.splitlines()
    assert first.count(MARKER) == 2, "IPv4 and IPv6"
    assert all(line in ("other ConnectionResetError", "other ConnectionRefusedError") for line in rest)
    assert {"198.18.77.7", "fd5b:6b65:7000::7777", "8.8.8.8", "2001:db8::1", "10.0.0.1"} <= seen.denied()


def test_a_resolver_of_ones_own_is_answered_like_the_systems_and_nothing_leaves(stage: Stage) -> None:
    code = f"""
for server in ("127.0.0.1", "8.8.8.8", "2001:4860:4860::8888"):
    for kind in (1, 28):
        print(lookup("{GOOD}", server, kind), lookup("{BAD}", server, kind), lookup("secret.{GOOD}", server, kind))
print(talk(("127.0.0.1", 53), b"\\0\\0").decode(), talk(("8.8.8.8", 53), b"\\0\\0").decode())
"""
    seen = inside(stage, code)
    *answers, over_tcp = seen.output.splitlines()
    assert answers == ["198.18.0.1 error 3 error 3", "fd5b:6b65:7000::1 error 3 error 3"] * 3
    assert over_tcp == "ConnectionRefusedError ConnectionResetError" and "8.8.8.8" in seen.denied()


def test_a_redirect_is_decided_like_every_request(stage: Stage) -> None:
    def curl(host: str) -> str:
        return f"curl -sSL -m 60 http://{GOOD}:{stage.ports.http}/redirect/http://{host}:{stage.ports.http}/hello"

    assert MARKER in stage.exec(curl(GOOD)).output
    seen = stage.exec(curl(BAD))
    assert MARKER not in seen.output and BAD in seen.denied() and GOOD in {host for host, _ in seen.allowed()}


# The server may find its client gone before it has wrapped it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_another_name_in_the_client_hello_is_cut_and_recorded(stage: Stage) -> None:
    code = f"""
import ssl
for name in ("{GOOD}", "{BAD}"):
    with socket.create_connection(("{GOOD}", {stage.ports.https}), 60) as sock:
        try:
            with ssl.create_default_context().wrap_socket(sock, server_hostname=name) as tls:
                tls.sendall(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
                print(tls.makefile().read().splitlines()[-1])
        except OSError as error:
            print(type(error).__name__)
"""
    seen = inside(stage, code)
    good, bad = seen.output.splitlines()
    assert good == MARKER and bad in ("ConnectionResetError", "SSLEOFError", "SSLZeroReturnError")
    assert {"host": BAD, "port": stage.ports.https, "count": 1, "reason": "sni-mismatch"} in seen.report["egress"][
        "denied"
    ]


def test_nothing_of_skep_runs_inside(stage: Stage) -> None:
    code = f"""
import os
print(talk(("{GOOD}", {stage.ports.lines}), b"who are you\\n").decode().strip())
for pid in filter(str.isdigit, os.listdir("/proc")):
    print(pid, open(f"/proc/{{pid}}/comm").read().strip())
print(sorted(os.listdir("/proc/self/fd"))[:3], os.path.exists("/proc/self/fd/4"))
with open("/proc/net/tcp") as table:
    print("listening", sum(line.split()[3] == "0A" for line in table if ":" in line and "local_address" not in line))
"""
    lines = inside(stage, code).output.splitlines()
    assert lines[0] == MARKER
    processes = {line.split()[0]: line.split()[1] for line in lines[1:-2]}
    assert processes.pop("1") == "bwrap"
    assert set(processes.values()) <= {
        "sh",
        "python3",
        "python",
        "python3.11",
        "python3.12",
        "python3.13",
        "python3.14",
    }
    assert len(processes) <= 2 and lines[-2] == "['0', '1', '2'] False"


def test_more_connections_than_the_proxy_has_descriptors_end_nothing_but_themselves(stage: Stage) -> None:
    """The soft limit of descriptors is small; the worker raises its own."""
    code = f"""
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
clients = []
for _ in range(400):
    clients.append(socket.create_connection(("127.0.0.1", 3128), 60))
    clients[-1].sendall(b"CONNECT {GOOD}:{stage.ports.lines} HTTP/1.1\\r\\n\\r\\n")
for client in clients:
    client.close()
import time
for _ in range(100):  # those that are gone are noticed one by one
    answer = talk(("{GOOD}", {stage.ports.lines}), b"who are you\\n", 10)
    if b"marker" in answer:
        break
    time.sleep(0.1)
print(answer.decode())
"""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1024:
        pytest.skip("no descriptors to use up")
    seen = inside(stage, code, descriptors=128)
    assert MARKER in seen.output and seen.report["exit_code"] == 0 and "Traceback" not in seen.error, seen.error


def test_names_without_end_are_a_short_report_and_a_short_farewell(stage: Stage) -> None:
    code = """
with socket.create_connection(("127.0.0.1", 3128), 60) as sock, sock.makefile("rb") as answers:
    for number in range(6000):
        sock.sendall(b"HEAD http://h%d.test/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % number)
        while answers.readline().strip():
            pass
"""
    seen = inside(stage, code)
    assert len(seen.report["egress"]["denied"]) < 5000 and len(seen.error.splitlines()) < 30
    assert sum(entry["count"] for entry in seen.report["egress"]["denied"]) == 6000


def test_where_the_kernel_refuses_the_route_the_record_says_so_and_the_rest_works(stage: Stage) -> None:
    port = stage.ports.lines
    code = f"""
print(connect("{GOOD}:{port}").decode())
print(talk(("{GOOD}", {port}), b"who are you\\n").decode())
print(talk(("127.0.0.1", {stage.ports.postgres}), bytes.fromhex("0000000800030000" "5800000004")).decode())
"""
    flags = ("--allow", f"localhost:{stage.ports.postgres}")
    for weakened in (None, "no route"):
        seen = inside(stage, code, *flags, weakened=weakened)
        layer = seen.report["layers"]["transparent"]
        assert (layer is True) is (weakened is None), json.dumps(layer)
        assert seen.report["layers"]["every-port"] == layer
        if weakened:
            assert "refused the route" in layer
        assert seen.output.count(MARKER) == (1 if weakened else 2)
        assert seen.output.rstrip().endswith("I"), "a service of the host is at its address either way"
