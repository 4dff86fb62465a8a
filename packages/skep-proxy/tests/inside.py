"""Run by test_transparent in a network namespace of its own: what a sandbox's first program does, then `code`.

argv: the handing descriptor, the listeners as JSON, the code.
"""

import fcntl
import json
import socket
import struct
import sys


def lo_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def every_address_is_local() -> None:
    lo = socket.if_nametoindex("lo")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        for family in (socket.AF_INET, socket.AF_INET6):
            body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 255, 4, 254, 2, 0) + struct.pack("=HHI", 8, 4, lo)
            sock.send(struct.pack("=IHHII", 16 + len(body), 24, 0x605, 1, 0) + body)
            sock.recv(4096)


def listener(kind: str, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM if kind == "dns" else socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((address, port))
    if kind != "dns":
        sock.listen(1024)
    return sock


def main() -> None:
    lo_up()
    every_address_is_local()
    entries = json.loads(sys.argv[2])
    socks = [listener(*entry) for entry in entries]
    listen = [{"kind": kind, "address": address, "port": port} for kind, address, port in entries]
    with socket.socket(fileno=int(sys.argv[1])) as control:
        line = b"SKEP-HANDOFF 1 " + json.dumps({"listen": listen}).encode() + b"\n"
        socket.send_fds(control, [line], [sock.fileno() for sock in socks])
        assert control.recv(100) == b"go\n"
    for sock in socks:
        sock.close()
    exec(compile(sys.argv[3], "inside", "exec"), {"socket": socket, "struct": struct})


if __name__ == "__main__":
    main()
