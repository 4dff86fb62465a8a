"""What a worker that has read the source tries: more than its share, by handing over again, by other names, in time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from skep_policy import Rules
from skep_proxy import Limits
from skep_proxy.acceptor import IN_FLIGHT
from skep_proxy.handoff import MAX_HANDOFFS
from skep_proxy.resolver import SHARE
from skep_proxy.scope import BUDGETS, Scope
from skep_proxy.testing import Origin, read_all, wait_until

from .conftest import Make, Serve, Setup, in_time, refused
from .test_connect import echo
from .test_handoff import get_through, hand_over, listener


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "proxy.sock")


def offer(stack: ExitStack, path: str, *mine: socket.socket) -> tuple[socket.socket, bytes]:
    """A handing connection on a mounted socket, and the answer."""
    control = stack.enter_context(socket.socket(socket.AF_UNIX))
    control.settimeout(60)
    control.connect(path)
    hand_over(control, [("proxy", sock) for sock in mine])
    return control, control.recv(200)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def tunnel(address: tuple[str, int], target: str, early: bytes = b"") -> socket.socket:
    sock = socket.create_connection(address, 60)
    sock.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode() + early)
    return sock


def test_handing_over_again_gives_no_new_budget(setup: Setup, serve: Serve, path: str, stack: ExitStack) -> None:
    origin = serve(read_all_of)
    target = f"localhost:{origin.port}"
    setup.proxy.listen_unix(path, Rules.build(allow=[target], max_bytes_out=1000))
    for sent, last in ((600, b""), (600, b"byte-budget")):
        mine = stack.enter_context(listener())
        control, answer = offer(stack, path, mine)
        assert answer == b"go\n"
        with tunnel(mine.getsockname(), target, b"x" * sent) as client:
            try:
                client.shutdown(socket.SHUT_WR)
                assert b" 200 " in read_all(client) and not last
            except OSError:
                assert last
        control.close()
    assert setup.events.wait(lambda events: ("localhost", origin.port, "byte-budget") in events.denied())


def read_all_of(sock: socket.socket) -> None:
    read_all(sock)


def test_listeners_handed_over_count_like_connections(make: Make, path: str, stack: ExitStack) -> None:
    setup = make(limits=Limits(connections_each=9))
    setup.proxy.listen_unix(path, Rules.build())

    def some(count: int) -> tuple[socket.socket, bytes]:
        return offer(stack, path, *[stack.enter_context(listener()) for _ in range(count)])

    first, answer = some(4)
    assert answer == b"go\n"
    assert some(4)[1] == b"go\n"
    assert some(2)[1].startswith(b"refused too many")
    first.close()
    assert wait_until(lambda: some(2)[1] == b"go\n")


def test_connections_of_all_hand_overs_together_are_limited(
    make: Make, origin: Origin, path: str, stack: ExitStack
) -> None:
    setup = make(limits=Limits(connections_each=42))
    target = f"localhost:{origin.port}"
    setup.proxy.listen_unix(path, Rules.build(allow=[target]))
    mine = [stack.enter_context(listener()) for _ in range(2)]
    for sock in mine:
        assert offer(stack, path, sock)[1] == b"go\n"
    clients = [stack.enter_context(tunnel(sock.getsockname(), target)) for _ in range(60) for sock in mine]
    assert wait_until(lambda: setup.proxy.stats().tunnels >= 40)
    assert not wait_until(lambda: setup.proxy.stats().tunnels > 40 + 2 * IN_FLIGHT, 0.5)
    for client in clients[:80]:
        client.close()
    assert wait_until(lambda: setup.proxy.stats().allowed == 120), "the others come when there is room"


def test_hand_overs_by_one_socket_are_limited(setup: Setup, origin: Origin, path: str, stack: ExitStack) -> None:
    rules = Rules.build(allow=[f"localhost:{origin.port}"])
    setup.proxy.listen_unix(path, rules)
    other = setup.proxy.listen_tcp("127.0.0.1", 0, rules)
    mine = stack.enter_context(listener())
    answers = [offer(stack, path, mine)[1] for _ in range(MAX_HANDOFFS + 1)]
    assert answers[:-1] == [b"go\n"] * MAX_HANDOFFS and answers[-1].startswith(b"refused too many")
    assert b"origin ok" in get_through(other, origin.port)
    assert b"origin ok" in get_through(mine.getsockname(), origin.port)


def test_what_was_handed_over_cannot_hand_over(setup: Setup, path: str, tmp_path: Path, stack: ExitStack) -> None:
    """It would outlive the connection it came by."""
    setup.proxy.listen_unix(path, Rules.build())
    inner = stack.enter_context(socket.socket(socket.AF_UNIX))
    inner.bind(str(tmp_path / "inner.sock"))
    inner.listen()
    assert offer(stack, path, inner)[1] == b"go\n"
    mine = stack.enter_context(listener())
    nested = stack.enter_context(socket.socket(socket.AF_UNIX))
    nested.connect(str(tmp_path / "inner.sock"))
    hand_over(nested, [("proxy", mine)])
    nested.sendall(b"\r\n\r\n")
    assert b"HTTP/1.1 400 " in nested.recv(1000)


def test_a_closed_listener_takes_what_came_by_it_along_but_open_tunnels(
    setup: Setup, serve: Serve, path: str, stack: ExitStack
) -> None:
    origin = serve(echo)
    target = f"localhost:{origin.port}"
    rules = Rules.build(allow=[target])
    setup.proxy.listen_unix(path, rules)
    mine = listener()
    control, answer = offer(stack, path, mine)
    assert answer == b"go\n"
    address = mine.getsockname()
    mine.close()
    client = stack.enter_context(tunnel(address, target))
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    assert setup.proxy.close_listeners(rules) == 1
    assert wait_until(lambda: refused(address))
    client.sendall(b"still there")
    assert client.recv(100) == b"still there"
    late = stack.enter_context(listener())
    hand_over(control, [("proxy", late)])
    assert control.recv(200).startswith(b"refused ")


def test_names_below_a_wildcard_share_a_budget(setup: Setup, serve: Serve) -> None:
    """Their owner could else be sent any amount, a name at a time."""
    origin = serve(read_all_of)
    for name in ("a.big.test", "b.big.test", "other.test"):
        setup.names[name] = "127.0.0.1"
    setup.listen(f"*.big.test:{origin.port}", f"other.test:{origin.port}", max_bytes_out=1000)
    first = setup.tunnel(f"a.big.test:{origin.port}", b"x" * 1000)
    first.shutdown(socket.SHUT_WR)
    assert read_all(first) == b""
    assert b"X-Skep-Reason: byte-budget" in read_all(setup.connect(f"b.big.test:{origin.port}"))
    assert setup.tunnel(f"other.test:{origin.port}", b"x" * 1000)


def test_names_that_nobody_answers_hold_up_their_own_listener_only(make: Make, origin: Origin) -> None:
    release = threading.Event()
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        if host.endswith(".slow.test"):
            release.wait(60)
            raise OSError("no answer")
        return ["127.0.0.1"]

    setup = make(resolve=resolve, limits=Limits(dial=0.5))
    setup.listen("*.slow.test")
    slow = [setup.connect(f"h{number}.slow.test:443") for number in range(100)]
    setup.listen(f"quick.test:{origin.port}")
    assert in_time(lambda: setup.tunnel(f"quick.test:{origin.port}"))
    for client in slow:
        assert b" 504 " in read_all(client)
    names = {f"h{number}.slow.test" for number in range(100)}
    assert len(names.intersection(asked)) == SHARE
    release.set()
    setup.listen("a.slow.test:1")

    def fail() -> None:
        assert b" 502 " in read_all(setup.connect("a.slow.test:1"))

    in_time(fail)
    assert len(names.intersection(asked)) == SHARE, "what nobody waits for any more is not looked up"


def test_budgets_are_kept_for_so_many_destinations_and_one_for_all_others() -> None:
    scope = Scope(Rules.build(allow=["*"], max_bytes_out=10))
    budgets = {id(scope.allowance(f"h{number}.example", 443)) for number in range(BUDGETS + 1000)}
    assert len(budgets) == BUDGETS + 1


def test_a_raised_budget_counts_what_was_spent() -> None:
    scope = Scope(Rules.build(allow=["a.test"], max_bytes_out=10))
    spent = scope.allowance("a.test", 443)
    assert spent is not None
    spent.charge(8)
    for limit, left in ((20, 12), (5, 0), (10, 2)):
        scope.rules = Rules.build(allow=["a.test"], max_bytes_out=limit)
        allowance = scope.allowance("a.test", 80)
        assert allowance is spent and spent.left == left


def test_rules_replaced_in_the_middle_decide_nothing_wrong(setup: Setup, origin: Origin) -> None:
    """Each request is decided by the rules before or after; one that begins after the call, by those after."""
    target = f"localhost:{origin.port}"
    # `open` allows it, `shut` does not; the flag says which was in force from before a request to after it.
    opened, shut = Rules.build(allow=[target]), Rules.build(allow=["elsewhere.test"])
    setup.address = setup.proxy.listen_tcp("127.0.0.1", 0, opened)
    epoch = [0]
    wrong: list[str] = []
    done = threading.Event()
    counts = {b"200": 0, b"403": 0}

    def ask() -> None:
        request = f"GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()
        while not done.is_set():
            with socket.create_connection(setup.address, 60) as client, client.makefile("rb") as answer:
                for _ in range(20):
                    before = epoch[0]
                    client.sendall(request)
                    code = answer.readline().split()[1]
                    size = 0
                    while line := answer.readline().strip():
                        if line.lower().startswith(b"content-length:"):
                            size = int(line.split(b":")[1])
                    answer.read(size)
                    counts[code] += 1
                    if before == epoch[0] and before % 2 == 0 and code != (b"403" if before % 4 else b"200"):
                        wrong.append(f"epoch {before}: {code}")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    current, other = opened, shut
    for _ in range(100):
        enough = sum(counts.values()) + 4
        assert wait_until(lambda: sum(counts.values()) > enough)  # noqa: B023
        epoch[0] += 1  # odd: either answer is right
        setup.proxy.replace_rules(current, other)
        epoch[0] += 1
        current, other = other, current
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == [] and min(counts.values()) > 50


GONE = """
import socket, sys
sys.path.insert(0, TESTS)
import inside, skep_proxy.engine as engine
from skep_policy import Rules
from skep_proxy import Proxy
from skep_proxy.testing import Origin, wait_until

inside.lo_up()
with open("/proc/sys/net/ipv4/tcp_fin_timeout", "w") as file:
    file.write("1")
engine.KEEPALIVE, engine.PROBE = 1, 1  # as after two minutes
def silent(sock):
    sock.settimeout(60)
    while sock.recv(100):
        pass
    wait_until(lambda: False, 60)  # knows of the half-close, and does nothing
origin = Origin(silent)
with Proxy() as proxy:
    address = proxy.listen_tcp("127.0.0.1", 0, Rules.build(allow=[f"localhost:{origin.port}"]))
    def tunnel():
        client = socket.create_connection(address)
        client.sendall(b"CONNECT localhost:%d HTTP/1.1\\r\\n\\r\\n" % origin.port)
        assert b" 200 " in client.recv(100)
        return client
    half, gone = tunnel(), tunnel()
    half.shutdown(socket.SHUT_WR)
    gone.close()
    print(wait_until(lambda: proxy.stats().tunnels == 1, 30))
    print(wait_until(lambda: proxy.stats().tunnels == 0, 3))
import os
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.sandbox
def test_a_client_that_is_gone_does_not_wait_for_ever_for_a_silent_server() -> None:
    """One that has only stopped sending does. In a namespace, for its own tcp_fin_timeout."""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    code = GONE.replace("TESTS", repr(str(Path(__file__).parent)))
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False
    )
    if done.returncode and "unshare" in done.stderr and os.environ.get("SKEP_SANDBOX_MUST_WORK") != "1":
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    assert done.stdout.split() == ["True", "False"], done.stderr
