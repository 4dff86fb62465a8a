"""Shim and proxy as in a container: no network but one mounted Unix socket."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_netshim import SHIM
from skep_policy.events import Decision, EgressEvent
from skep_policy.rules import Rules
from skep_proxy import Proxy

pytestmark = pytest.mark.sandbox

LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""
ASK = """
import socket, sys
for port in sys.argv[1:]:
    client = socket.create_connection(("127.0.0.1", 3128))
    host = f"127.0.0.1:{port}"
    client.sendall(f"GET http://{host}/ HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    answer = b""
    while block := client.recv(65536):
        answer += block
    print(answer.split()[1].decode(), b"from the origin" in answer)
"""


class Origin(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the origin")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def origin() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Origin) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("relay", [False, True], ids=["listeners handed over", "relayed"])
@pytest.mark.guarantee("net-listed")
def test_a_command_without_a_network_reaches_what_the_proxy_allows(tmp_path: Path, origin: int, relay: bool) -> None:
    events: list[EgressEvent] = []
    path = str(tmp_path / "proxy.sock")
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    shim = [sys.executable, "-I", "-S", SHIM, "--unix", path, *(["--relay"] if relay else [])]
    with Proxy(on_event=events.append) as proxy, socket.create_server(("127.0.0.1", 0)) as other:
        proxy.listen_unix(path, Rules.build([f"127.0.0.1:{origin}"]))
        ports = [str(origin), str(other.getsockname()[1])]
        done = subprocess.run(
            [*unshare, sys.executable, "-c", LOOPBACK_UP, *shim, "--", sys.executable, "-c", ASK, *ports],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout == "200 True\n403 False\n", done.stderr
    assert [event.verdict.allow for event in events if isinstance(event, Decision)] == [True, False]
