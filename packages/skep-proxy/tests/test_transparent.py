"""Transparent egress: programs in a network namespace that know of no proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from skep_policy import Rules
from skep_proxy.testing import Origin

from .conftest import Setup

INSIDE = Path(__file__).with_name("inside.py")

LOOKUP = """
def lookup(name, kind, server="127.0.0.1"):
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.split("."))
    sock = socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(60)
    sock.connect((server, 53))
    sock.send(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1))
    answer = sock.recv(1000)
    if answer[3] & 15:
        return None
    return socket.inet_ntop(socket.AF_INET, answer[-4:]) if kind == 1 else socket.inet_ntop(socket.AF_INET6,
    answer[-16:])

def get(address, port):
    try:
        with socket.create_connection((address, port), 60) as sock:
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            return sock.makefile("rb").read().partition(b"\\r\\n\\r\\n")[2].decode().strip()
    except OSError as error:
        return type(error).__name__
"""


def inside(setup: Setup, rules: Rules, listeners: list[tuple[str, str, int]], code: str) -> list[str]:
    """The lines that `code` prints in a namespace whose listeners are handed over."""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    with setup.proxy.connect(rules) as control:
        argv = [*unshare, sys.executable, str(INSIDE), str(control.fileno()), json.dumps(listeners), LOOKUP + code]
        done = subprocess.run(
            argv, pass_fds=[control.fileno()], capture_output=True, text=True, timeout=60, check=False
        )
    if done.returncode and "unshare" in done.stderr and os.environ.get("SKEP_SANDBOX_MUST_WORK") != "1":
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.sandbox
def test_names_lead_to_their_hosts_in_both_families(setup: Setup, origin: Origin) -> None:
    setup.names["good.test"] = "127.0.0.1"
    rules = Rules.build(allow=[f"good.test:{origin.port}"], private=["good.test"])
    listeners = [("tcp", "0.0.0.0", origin.port), ("tcp", "::", origin.port), ("dns", "127.0.0.1", 53)]
    code = f"""
for kind in (1, 28):
    print(get(lookup("good.test", kind), {origin.port}))
print(lookup("bad.test", 1), lookup("bad.test", 28))
print(get("192.0.2.1", {origin.port}), get("198.18.9.9", {origin.port}), get("2001:db8::1", {origin.port}))
print(get(lookup("good.test", 1), 1))
"""
    lines = inside(setup, rules, listeners, code)
    assert lines[:3] == ["origin ok", "origin ok", "None None"]
    assert lines[3] == " ".join(["ConnectionResetError"] * 3)
    assert lines[4] == "ConnectionRefusedError", "ports without a listener are refused at once"
    denied = set(setup.events.denied())
    for target in (
        ("bad.test", 0),
        ("192.0.2.1", origin.port),
        ("198.18.9.9", origin.port),
        ("2001:db8::1", origin.port),
    ):
        assert (*target, "not-listed") in denied
    assert setup.events.allowed() == [("good.test", origin.port)] * 2
    assert setup.table.asked == ["good.test"] * 2


@pytest.mark.sandbox
def test_service_of_the_host_is_at_its_own_address_inside(setup: Setup, origin: Origin) -> None:
    rules = Rules.build(allow=[f"localhost:{origin.port}"])
    listeners = [("tcp", "127.0.0.1", origin.port), ("tcp", "::1", origin.port), ("tcp", "127.0.0.1", 1)]
    code = f"print(get('127.0.0.1', {origin.port}), get('::1', {origin.port}), get('127.0.0.1', 1))"
    assert inside(setup, rules, listeners, code) == ["origin ok origin ok ConnectionResetError"]


@pytest.mark.sandbox
def test_address_that_a_rule_names_is_reached_as_itself(setup: Setup, origin: Origin) -> None:
    rules = Rules.build(allow=[f"127.0.0.0/8:{origin.port}"])
    code = f"print(get('127.9.9.9', {origin.port}))"
    lines = inside(setup, rules, [("tcp", "0.0.0.0", origin.port)], code)
    assert setup.events.allowed() == [("127.9.9.9", origin.port)]
    assert lines[0] in ("origin ok", "ConnectionResetError")


@pytest.mark.sandbox
def test_names_are_answered_from_the_address_they_were_asked_at(setup: Setup) -> None:
    listeners = [("dns", "0.0.0.0", 53), ("dns", "::", 53)]
    code = "print(lookup('good.test', 1, '8.8.8.8'), lookup('good.test', 28, '2001:db8::53'))"
    lines = inside(setup, Rules.build(allow=["good.test"]), listeners, code)
    assert lines == ["198.18.0.1 fd5b:6b65:7000::1"]


@pytest.mark.sandbox
def test_proxy_port_inside_speaks_like_any_other(setup: Setup, origin: Origin) -> None:
    rules = Rules.build(allow=[f"localhost:{origin.port}"])
    code = f"""
for host in ("localhost", "bad.test"):
    sock = socket.create_connection(("127.0.0.1", 3128), 60)
    sock.sendall(b"GET http://%b:{origin.port}/ HTTP/1.0\\r\\n\\r\\n" % host.encode())
    print(sock.makefile("rb").read().decode().split()[1])
"""
    assert inside(setup, rules, [("proxy", "127.0.0.1", 3128)], code) == ["200", "403"]


@pytest.mark.sandbox
def test_name_that_resolves_to_an_address_of_this_machine_is_denied(nothing_leaks: None) -> None:
    """A global address of the machine itself leads to services that are meant for inside. In the namespace every
    address is one.
    """
    code = """
import sys
sys.path.insert(0, TESTS)
import inside
from skep_policy import Rules
from skep_proxy import Proxy
from skep_proxy.testing import Origin, Table, read_all

inside.lo_up()
inside.every_address_is_local()
origin = Origin(host="0.0.0.0")
for private in ([], ["host.test"]):
    with Proxy(resolve=Table({"host.test": "8.8.8.8"})) as proxy:
        rules = Rules.build(allow=[f"host.test:{origin.port}"], private=private)
        with inside.socket.create_connection(proxy.listen_tcp("127.0.0.1", 0, rules), 60) as client:
            client.sendall(f"GET http://host.test:{origin.port}/ HTTP/1.0\\r\\n\\r\\n".encode())
            print(read_all(client).split()[1].decode())
origin.close()
"""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    code = code.replace("TESTS", repr(str(INSIDE.parent)))
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode and "unshare" in done.stderr and os.environ.get("SKEP_SANDBOX_MUST_WORK") != "1":
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    assert done.stdout.split() == ["403", "200"], done.stderr
