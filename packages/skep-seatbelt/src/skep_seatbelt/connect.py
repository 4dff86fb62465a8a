"""stdin and stdout to a host, by the run's proxy: what ssh is given as its ProxyCommand.

    python -I -S connect.py HOST PORT

The proxy and the token stand in `HTTPS_PROXY`, as for every other program of the worker. Stdlib only.
"""

from __future__ import annotations

import base64
import os
import socket
import sys
import threading

MAX_REPLY = 65536
"""Bytes of the proxy's answer that are read; a denial's reason is a few hundred."""


class Refused(Exception):
    """The proxy did not make the connection. `str()` is its reason."""


def tunnel(proxy: str, host: str, port: int) -> tuple[socket.socket, bytes]:
    """A connection to the host, and what it has said already. Raises Refused, OSError."""
    credentials, _, address = proxy.rpartition("/")[2].rpartition("@")
    sock = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    shown = f"Proxy-Authorization: Basic {base64.b64encode(credentials.encode()).decode()}\r\n" if credentials else ""
    sock.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{shown}\r\n".encode())
    reply = b""
    while b"\r\n\r\n" not in reply:
        block = sock.recv(4096)
        if not block or len(reply) > MAX_REPLY:
            raise Refused("the proxy hung up")
        reply += block
    head, _, rest = reply.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] == [b"200"]:
        return sock, rest
    while len(rest) < MAX_REPLY and (block := sock.recv(4096)):
        rest += block
    raise Refused(rest.decode("ascii", "replace").strip() or "the proxy refused")


def join(sock: socket.socket, rest: bytes) -> None:
    """Until the host has said everything. Each way on a thread of its own: none waits for the other."""

    def send() -> None:
        try:
            while block := os.read(0, 65536):
                sock.sendall(block)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()
    block = rest
    while True:
        while block:
            block = block[os.write(1, block) :]
        try:
            block = sock.recv(65536)
        except OSError:
            return
        if not block:
            return


def main(words: list[str], proxy: str | None) -> int:
    if len(words) != 2 or not words[1].isdigit() or proxy is None:
        sys.stderr.write("usage: connect.py HOST PORT, with HTTPS_PROXY in the environment\n")
        return 2
    try:
        join(*tunnel(proxy, words[0], int(words[1])))
    except (Refused, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:], os.environ.get("HTTPS_PROXY"))
    sys.stderr.flush()
    os._exit(status)  # a thread may still wait for standard input
