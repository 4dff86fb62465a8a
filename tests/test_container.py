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
from skep_bwrap.find import find_bwrap
from skep_netshim import SHIM
from skep_policy.events import Decision, EgressEvent
from skep_policy.rules import Rules
from skep_proxy import Proxy

from .readme import code_blocks

ROOT = Path(__file__).parents[1]
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


DOCKER = """#!{python} -IS
# As much of `docker run` as the documents use: no network, mounts, an image that is this machine's /usr.
import os, sys
words = sys.argv[1:]
assert words[:3] == ["run", "--network", "none"], words
words = words[3:]
argv = [{bwrap!r}, "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
for folder in ("/usr", "/etc", "/bin", "/lib", "/lib64"):
    if os.path.exists(folder):
        argv += ["--ro-bind", folder, folder]
while words[0] == "-v":
    source, target, *mode = words[1].split(":")
    argv += ["--ro-bind" if mode == ["ro"] else "--bind", source, target]
    words = words[2:]
assert words[0] == "IMAGE", words
os.execv(argv[0], [*argv, "--", *words[1:]])
"""


def documented(package: str) -> str:
    """The shell words of its README with which a container is started."""
    blocks = code_blocks(ROOT / f"packages/{package}/README.md")
    [text] = [block.text for block in blocks if "docker run" in block.text]
    return text


@pytest.mark.guarantee("net-listed")
@pytest.mark.parametrize("package", ["skep-proxy", "skep-netshim"])
def test_the_container_of_the_documents_reaches_what_is_allowed_and_nothing_else(
    tmp_path: Path, origin: int, package: str
) -> None:
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no python3 below /usr, which stands for the image")
    folder = tmp_path / "bin"
    folder.mkdir()
    docker = folder / "docker"
    bwrap = find_bwrap(environ=os.environ)
    docker.write_text(DOCKER.format(python=os.path.realpath(sys.executable), bwrap=bwrap))
    docker.chmod(0o755)
    egress = tmp_path / "egress"
    egress.mkdir()
    socket_path = egress / ("proxy.sock" if package == "skep-netshim" else "agents.sock")
    script = documented(package).replace("/run/egress:", f"{egress}:").replace("/run/skep/", f"{egress}/")
    script = script.replace("-v SHIM:", f"-v {SHIM}:").replace("=CLONE/", f"={ROOT}/")
    script = script.replace("'*.example.com'", f"127.0.0.1:{origin}")
    script = script.replace("--unix /run/egress/proxy.sock &", f"--unix {socket_path} &")
    if package == "skep-proxy":
        script = f"skep-proxy serve --allow 127.0.0.1:{origin} --unix {socket_path} &\n{script}"
    ask = f"python3 -c '{ASK}' {origin} 1"
    script = script.replace("COMMAND...", ask).replace("COMMAND", ask)
    ready = f"proxy=$!; until [ -S {socket_path} ]; do sleep 0.05; done\n"
    script = script.replace("&\n", f"&\n{ready}", 1) + "\nstatus=$?; kill $proxy; wait $proxy; exit $status\n"
    env = {"PATH": f"{folder}:{Path(sys.executable).parent}:{os.defpath}", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "200 True\n403 False\n", script + done.stderr
    assert done.returncode == 0
