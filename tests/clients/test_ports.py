"""Every port of every address leads to the proxy, with programs that know of none; where the kernel has no nf_tables,
those that rules name do, and the record says so.
"""

from __future__ import annotations

import pytest

from .origins import BAD, GOOD, MARKER
from .stage import Stage
from .test_attacks import inside

pytestmark = pytest.mark.sandbox

WHO = """
def who(host, port):
    return talk((host, port), b"who are you\\n").decode().strip()
"""


@pytest.mark.guarantee("record-egress")
def test_an_allowed_host_at_a_port_that_no_rule_names_is_told_with_its_flag(stage: Stage) -> None:
    code = f"""{WHO}
print(who("{GOOD}", {stage.ports.lines}))
print(who("{GOOD}", 7))
print(who("2001:db8::7", 65535))
"""
    seen = inside(stage, code)
    assert seen.output.splitlines() == [MARKER, "ConnectionResetError", "ConnectionResetError"]
    denied = [(entry["host"], entry["port"], entry["reason"]) for entry in seen.report["egress"]["denied"]]
    assert denied == [(GOOD, 7, "not-listed"), ("2001:db8::7", 65535, "not-listed")]
    assert f"skep: denied {GOOD}:7" in seen.error and f"--allow {GOOD}:7\n" in seen.error
    assert "--allow [2001:db8::7]:65535\n" in seen.error


@pytest.mark.guarantee("record-egress")
def test_a_name_that_is_only_looked_up_is_told_without_a_port(stage: Stage) -> None:
    seen = inside(stage, f"print(lookup('{BAD}', '127.0.0.1'), lookup('{GOOD}', '127.0.0.1'))")
    assert seen.output.startswith("error 3 198.18.")
    assert f"skep: denied {BAD}: not in the allowlist; --allow {BAD}\n" in seen.error
    assert [(entry["host"], entry["port"]) for entry in seen.report["egress"]["denied"]] == [(BAD, 0)]


@pytest.mark.parametrize("weakened", [None, "no route"])
def test_an_allowed_host_that_is_not_reached_is_told_with_why(stage: Stage, weakened: str | None) -> None:
    """By the proxy and around it; and of what was reached, nothing is told."""
    code = f"""
print(connect("nowhere.test:443").decode())
print(connect("{BAD}:1").decode())
print(connect("{GOOD}:{stage.ports.lines}").decode())
for target in (("nowhere.test", 443), ("{BAD}", 1)):
    print(talk(target, b"").decode())
"""
    seen = inside(stage, code, "--allow", "nowhere.test", "--allow", f"{BAD}:1", weakened=weakened)
    assert seen.output.count("HTTP/1.1 502 ") == 2 and seen.output.count(MARKER) == 1
    told = [line for line in seen.error.splitlines() if "allowed" in line]
    assert len(told) == 2 and GOOD + ":" not in seen.error
    assert told[0].startswith("skep: allowed nowhere.test:443") and "cannot be resolved" in told[0]
    assert told[1].startswith(f"skep: allowed {BAD}:1") and told[1].endswith("127.0.0.1:1: Connection refused")
    entry = seen.report["egress"]["allowed"][0]
    assert entry["unreached"] == entry["count"] == (1 if weakened else 2) and "resolved" in entry["why"]


@pytest.mark.parametrize("weakened", [None, "no nf_tables"])
def test_a_rule_for_every_port_is_for_every_port_where_the_kernel_can(stage: Stage, weakened: str | None) -> None:
    code = f"{WHO}\nprint(who('{BAD}', {stage.ports.lines}), connect('{BAD}:{stage.ports.lines}'))"
    seen = inside(stage, code, "--allow", f"{BAD}:*", weakened=weakened)
    first, second = seen.output[:30], seen.output[30:]
    layers = seen.report["layers"]
    assert layers["transparent"] is True and MARKER in second, "the proxy's own port serves it either way"
    if weakened is None:
        assert first.startswith(MARKER) and layers["every-port"] is True
    else:
        assert first.startswith("ConnectionRefusedError")
        assert "refused nf_tables" in layers["every-port"] and "22, 80, 443" in layers["every-port"]


@pytest.mark.parametrize("weakened", [None, "no nf_tables"])
def test_named_ports_names_and_services_of_the_host_are_served_either_way(stage: Stage, weakened: str | None) -> None:
    code = f"""{WHO}
print(who("{GOOD}", {stage.ports.lines}))
print(talk(("127.0.0.1", {stage.ports.postgres}), bytes.fromhex("0000000800030000" "5800000004")).decode())
print(lookup("{BAD}", "127.0.0.1"))
"""
    seen = inside(stage, code, "--allow", f"localhost:{stage.ports.postgres}", weakened=weakened)
    first, *service, name = seen.output.splitlines()
    assert first == MARKER and service[0].endswith("I") and name == "error 3"


@pytest.mark.parametrize("weakened", [None, "no nf_tables"])
def test_a_rule_for_loopback_addresses_leads_to_those_of_the_host(stage: Stage, weakened: str | None) -> None:
    code = f"{WHO}\nprint(who('127.0.0.1', {stage.ports.lines}), who('127.0.0.1', {stage.ports.http}))"
    seen = inside(stage, code, "--allow", f"127.0.0.0/8:{stage.ports.lines}", weakened=weakened)
    assert seen.output.startswith(MARKER) and ("127.0.0.1", stage.ports.lines) in seen.allowed()
    assert "Error" in seen.output, "another port is the worker's own, or denied"


def test_what_the_worker_itself_listens_at_is_its_own_and_names_are_not(stage: Stage) -> None:
    """Programs take the address from which they would reach a distant one for their own, listen and connect there."""
    code = f"""{WHO}
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.connect(("10.254.254.254", 1))
    mine = sock.getsockname()[0]
for family, address, bound in (
    (socket.AF_INET, mine, mine), (socket.AF_INET, mine, "0.0.0.0"), (socket.AF_INET6, "fd00::7", "::"),
    (socket.AF_INET, "127.0.0.1", "0.0.0.0"),
):
    with socket.create_server((bound, {stage.ports.lines}), family=family) as server:
        with socket.create_connection((address, {stage.ports.lines}), 60) as client:
            print(server.accept()[0].getsockname()[0] == address)
        print(who("{GOOD}", {stage.ports.lines}))
"""
    assert inside(stage, code).output.splitlines() == ["True", MARKER] * 4


def test_the_worker_cannot_change_where_ports_lead(stage: Stage) -> None:
    code = """
import errno
for family, kind, protocol in ((socket.AF_NETLINK, socket.SOCK_RAW, 12), (socket.AF_NETLINK, socket.SOCK_DGRAM, 12)):
    try:
        socket.socket(family, kind, protocol).close()
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
with socket.socket() as sock:
    try:
        sock.setsockopt(0, 19, 1)
        print("transparent")
    except OSError as error:
        print(errno.errorcode[error.errno])
    try:
        sock.bind(("0.0.0.0", 1))
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    assert inside(stage, code).output.split() == ["EAFNOSUPPORT", "EAFNOSUPPORT", "EPERM", "EACCES"]
