"""Servers on the host's loopback for real clients: web and its registries over TLS, a database, a line protocol, sshd.

Every one answers with MARKER, so that a client that prints it has been there.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import socketserver
import ssl
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trustme

from .database import found as installed
from .database import postgres as real_postgres
from .database import wait_for

GOOD, BAD = "good.test", "bad.test"
MARKER = "marker of the origin"
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.defpath)

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 section 1.3


class Ports(NamedTuple):
    http: int
    https: int
    postgres: int
    lines: int
    ssh: int
    """Nothing listens there when the machine has no sshd."""
    database: int
    """PostgreSQL's own server, or `postgres` where that is not installed."""


class Web(http.server.SimpleHTTPRequestHandler):
    """A folder, a WebSocket at /ws that says the marker once it has been spoken to, and /redirect/URL."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if self.path == "/ws":
            self.websocket()
        elif self.path.startswith("/redirect/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/redirect/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            super().do_GET()

    def websocket(self) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest()).decode())
        self.end_headers()
        self.rfile.read(6)  # an empty message: two bytes and a mask
        text = MARKER.encode()
        self.wfile.write(bytes((0x81, len(text))) + text + b"\x88\x02\x03\xe8")
        self.rfile.read(8)  # the close it answers with: two bytes, a mask, the code
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Postgres(socketserver.StreamRequestHandler):
    """As much of PostgreSQL's protocol as one simple query needs; every answer is one row, the marker."""

    def handle(self) -> None:
        while True:
            size = int.from_bytes(self.rfile.read(4), "big")
            start = self.rfile.read(max(0, size - 4))
            if int.from_bytes(start[:4], "big") not in (80877103, 80877104):  # SSLRequest, GSSENCRequest
                break
            self.wfile.write(b"N")
        self.say(b"R", bytes(4), b"Z", b"I")
        while kind := self.rfile.read(1):
            self.rfile.read(int.from_bytes(self.rfile.read(4), "big") - 4)
            if kind != b"Q":
                return
            column = b"\0\1m\0" + bytes(6) + b"\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0"
            row = b"\0\1" + len(MARKER).to_bytes(4, "big") + MARKER.encode()
            self.say(b"T", column, b"D", row, b"C", b"SELECT 1\0", b"Z", b"I")

    def say(self, *words: bytes) -> None:
        for kind, body in zip(words[::2], words[1::2], strict=True):
            self.wfile.write(kind + (len(body) + 4).to_bytes(4, "big") + body)


class Lines(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        if self.rfile.readline() == b"who are you\n":
            self.wfile.write(MARKER.encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64
    context: ssl.SSLContext | None = None

    def finish_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        if self.context is None:
            super().finish_request(request, client_address)  # pyright: ignore[reportArgumentType]
            return
        request.settimeout(60)
        with self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            secured.do_handshake()
            super().finish_request(secured, client_address)  # pyright: ignore[reportArgumentType]

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients go away


@contextmanager
def serving(handler: type[socketserver.StreamRequestHandler] | partial[Web], context: ssl.SSLContext | None = None):
    with Server(("127.0.0.1", 0), handler) as server:  # pyright: ignore[reportArgumentType]
        server.context = context
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def everything(folder: Path) -> Generator[Ports]:
    """All servers, and in `folder` what clients need of them: ca.pem, key (for ssh) and known_hosts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(GOOD, BAD).configure_cert(context)  # pyright: ignore[reportUnknownMemberType]
    web = partial(Web, directory=str(folder / "web"))
    with ExitStack() as stack:
        https = stack.enter_context(serving(web, context))
        http = stack.enter_context(serving(web))
        postgres, lines = (stack.enter_context(serving(handler)) for handler in (Postgres, Lines))
        fill(folder, https)
        database = postgres
        if installed() is not None:
            database = stack.enter_context(reserved_port())
            stack.enter_context(real_postgres(database, MARKER))
        ssh = stack.enter_context(reserved_port())
        stack.enter_context(secure_shell(folder, ssh))
        yield Ports(http, https, postgres, lines, ssh, database)


def fill(folder: Path, port: int) -> None:
    """web/hello, and one package of one file for each package manager; git/repo.git for both ways of git."""
    web = folder / "web"
    web.mkdir()
    (web / "hello").write_text(MARKER + "\n")
    python_index(web / "simple/skepling")
    npm_registry(web, f"https://{GOOD}:{port}/npm-files")
    apt_repository(web / "apt")
    go_modules(web / "go/skepling.test/@v")
    work = folder / "work"
    work.mkdir()
    (work / "hello").write_text(MARKER + "\n")
    for command in (
        ["init", "-q", "-b", "main", "."],
        ["add", "hello"],
        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "hello"],
        ["clone", "-q", "--bare", ".", str(web / "repo.git")],
        ["--git-dir", str(web / "repo.git"), "update-server-info"],
    ):
        env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
        subprocess.run(["git", *command], cwd=work, env=env, check=True)


def python_index(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = "skepling-1.0-py3-none-any.whl"
    info = "skepling-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("skepling.py", f"print({MARKER!r})\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: skepling\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"skepling.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')


def npm_registry(web: Path, files: str) -> None:
    (web / "npm").mkdir()
    (web / "npm-files").mkdir()
    manifest = {"name": "skepling", "version": "1.0.0", "main": "index.js"}
    archive = web / "npm-files/skepling-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        content = {"package.json": json.dumps(manifest), "index.js": f"console.log({MARKER!r})\n"}
        for name, text in content.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(text), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    dist = {"tarball": f"{files}/{archive.name}", "integrity": f"sha512-{digest}"}
    versions = {"1.0.0": {**manifest, "dist": dist}}
    document = {"name": "skepling", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    (web / "npm/skepling").write_text(json.dumps(document))


def apt_repository(folder: Path) -> None:
    folder.mkdir()
    fields = ("Package: skepling", "Version: 1.0", "Architecture: all", "Maintainer: t <t@example.com>")
    more = ("Filename: ./skepling.deb", "Size: 1", f"SHA256: {'0' * 64}", f"Description: {MARKER}")
    (folder / "Packages").write_text("\n".join((*fields, *more)) + "\n\n")


def go_modules(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "list").write_text("v1.0.0\n")
    (folder / "v1.0.0.info").write_text('{"Version": "v1.0.0", "Time": "2020-01-01T00:00:00Z"}')
    (folder / "v1.0.0.mod").write_text("module skepling.test\n")
    with zipfile.ZipFile(folder / "v1.0.0.zip", "w") as archive:
        archive.writestr("skepling.test@v1.0.0/go.mod", "module skepling.test\n")
        archive.writestr("skepling.test@v1.0.0/hello.go", f"package skepling // {MARKER}\n")


@contextmanager
def secure_shell(folder: Path, port: int) -> Generator[None]:
    """sshd as the current user, with keys of its own."""
    if SSHD is None:
        yield
        return
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it locks itself up when it starts as root
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized")
    settings = {
        "Port": port, "ListenAddress": "127.0.0.1", "HostKey": folder / "host_key", "PidFile": "none",
        "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "UsePAM": "no",
        "PasswordAuthentication": "no",        "PermitRootLogin": "prohibit-password", "AllowUsers": getpass.getuser(),
    }  # fmt: skip
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{host}]:{port} {public}" for host in (GOOD, BAD)))
    log = folder / "sshd.log"
    with log.open("w") as said:
        argv = [SSHD, "-D", "-e", "-f", folder / "sshd_config"]
        daemon = subprocess.Popen(argv, stderr=said, stdin=subprocess.DEVNULL)
    try:
        wait_for(port, daemon, log)
        yield
    finally:
        daemon.terminate()
        daemon.wait()


@contextmanager
def reserved_port() -> Generator[int]:
    """A port of loopback at which nobody listens but who asks for this very one: the system gives it to nobody else."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that a server, which sets it too, may have it
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
