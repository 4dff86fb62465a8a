"""The shim as a program, under every interpreter there is, in a network namespace of its own."""

from __future__ import annotations

import array
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from skep_netshim import SHIM
from skep_netshim.shim import Config, Refused, candidates, read_config

MUST_WORK = "SKEP_SANDBOX_MUST_WORK" in os.environ


def interpreters() -> list[str]:
    """Python 3.8 and later: ours, those on PATH, and those a version manager of this user has."""
    found = {sys.executable}
    for minor in range(8, 16):
        found |= {path for path in [shutil.which(f"python3.{minor}")] if path}
        found |= {str(path) for path in Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")}
    return sorted({real for path in found if is_program(real := os.path.realpath(path))})


def is_program(path: str) -> bool:
    """Not a version manager's script."""
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


pythons = pytest.mark.parametrize("python", interpreters(), ids=lambda path: "/".join(path.split("/")[-3:]))

# Brings up the loopback device, as every container has it: SIOCSIFFLAGS with IFF_UP, netdevice(7).
LOOPBACK = """
import fcntl, os, socket, struct, sys
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sH14x", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""


def alone(*argv: str) -> list[str]:
    """The command in a network namespace with loopback only."""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-Urn"]
    return [*unshare, sys.executable, "-c", LOOPBACK, *argv]


@pytest.fixture(scope="session")
def namespaces() -> None:
    done = subprocess.run(alone("/bin/sh", "-c", "true"), capture_output=True, text=True)
    if done.returncode:
        if MUST_WORK:
            pytest.fail(done.stderr)
        pytest.skip(f"no network namespace here: {done.stderr}")


class Server:
    """Listens on a Unix socket until closed; `serve` gets each connection on a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(path))
        self.server.listen()
        self.thread = threading.Thread(target=self.accept)
        self.thread.start()

    def accept(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.serve_closing, args=(connection,), daemon=True).start()

    def serve_closing(self, connection: socket.socket) -> None:
        with connection:
            self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.server.close()


class TakesListeners(Server):
    """Stands for a proxy: takes a hand-over, and says `proxied` to whoever connects."""

    answer = b"go\n"
    asked = b""

    def serve(self, connection: socket.socket) -> None:
        self.asked, fds, _, _ = socket.recv_fds(connection, 65536, 250)
        connection.sendall(self.answer)
        for fd in fds:
            with socket.socket(fileno=fd) as listener:
                if self.answer == b"go\n":
                    client, _ = listener.accept()
                    with client:
                        client.sendall(b"proxied " + client.recv(100))


class Echo(Server):
    """Stands for a foreign proxy behind a Unix socket; knows half-closes."""

    def serve(self, connection: socket.socket) -> None:
        data = bytearray()
        while block := connection.recv(65536):
            data += block
        connection.sendall(bytes(data))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.sock"


@pytest.fixture
def proxy(path: Path) -> Iterator[TakesListeners]:
    server = TakesListeners(path)
    yield server
    server.close()


@pytest.fixture
def echo(path: Path) -> Iterator[Path]:
    server = Echo(path)
    yield path
    server.close()


CLIENT = """
import os, socket
host, port = os.environ["HTTP_PROXY"].split("//")[1].split(":")
client = socket.create_connection((host, int(port)))
client.sendall(b"hello")
client.shutdown(socket.SHUT_WR)
print(client.recv(100).decode(), os.environ["https_proxy"], os.environ["NO_PROXY"])
"""


def shim(python: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(alone(python, "-I", "-S", SHIM, *args), capture_output=True, text=True, timeout=60)


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
@pythons
def test_a_mounted_socket_serves_a_container_without_a_network(python: str, path: Path, proxy: TakesListeners) -> None:
    done = shim(python, "--unix", str(path), "--", python, "-c", CLIENT)
    assert done.stdout == "proxied hello http://127.0.0.1:3128 localhost,127.0.0.1,::1\n", done.stderr
    assert proxy.asked == b'SKEP-HANDOFF 1 {"listen": [{"kind": "proxy", "address": "127.0.0.1", "port": 3128}]}\n'


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
@pythons
def test_a_foreign_proxy_behind_a_socket_is_relayed_to(python: str, echo: Path) -> None:
    done = shim(python, "--unix", str(echo), "--relay", "--port", "8899", "--", python, "-c", CLIENT)
    assert done.stdout.startswith("hello http://127.0.0.1:8899 "), done.stderr


MANY = """
import os, socket, threading
bad = []
def one(number):
    data = os.urandom(300000)
    client = socket.create_connection(("127.0.0.1", 3128))
    def write():
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
    threading.Thread(target=write).start()
    got = bytearray()
    while True:
        block = client.recv(65536)
        if not block:
            break
        got += block
    if bytes(got) != data:
        bad.append(number)
threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("bad", bad)
"""


# More connections at once than descriptors, and one more when those are gone.
SHORTAGE = """
import socket, time
held = []
for _ in range(60):
    held.append(socket.create_connection(("127.0.0.1", 3128), 60))
time.sleep(0.5)
for sock in held: sock.close()
time.sleep(0.5)
with socket.create_connection(("127.0.0.1", 3128), 60) as sock:
    sock.sendall(b"after"); sock.shutdown(socket.SHUT_WR)
    print(sock.recv(10))
"""


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
def test_a_shortage_of_descriptors_passes(echo: Path) -> None:
    relay = [sys.executable, "-I", "-S", str(SHIM), "--unix", str(echo), "--relay", "--", "sh", "-c"]
    inner = 'ulimit -n 256; exec "$0" -c "$1"'
    command = [*relay, inner, sys.executable, SHORTAGE]
    done = subprocess.run(
        alone("/bin/sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", *command), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "b'after'\n", done.stderr


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
def test_many_relayed_at_once_arrive_whole(echo: Path) -> None:
    assert shim(sys.executable, "--unix", str(echo), "--relay", "--", sys.executable, "-c", MANY).stdout == "bad []\n"


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["sh", "-c", "exit 5"], 5, ""),
        (["sh", "-c", "kill -TERM $$"], 143, ""),
        (["no-such-command"], 127, "No such file"),
        (["/etc/passwd"], 126, "denied"),
    ],
)
def test_the_status_is_the_commands(echo: Path, command: list[str], code: int, words: str) -> None:
    done = shim(sys.executable, "--unix", str(echo), "--relay", "--", *command)
    assert done.returncode == code and words in done.stderr


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
def test_signals_are_passed_on(echo: Path) -> None:
    command = ["sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"]
    argv = alone(sys.executable, "-I", "-S", SHIM, "--unix", str(echo), "--relay", "--", *command)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 9


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("answer", [b"refused too many\n", b"", b"gogo\n"])
def test_a_proxy_that_does_not_take_the_listeners_means_no_command(
    path: Path, proxy: TakesListeners, answer: bytes
) -> None:
    proxy.answer = answer
    done = shim(sys.executable, "--unix", str(path), "--", "sh", "-c", "echo ran")
    assert done.returncode == 125 and "did not take the listeners" in done.stderr and done.stdout == ""


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
def test_no_socket_there_means_no_command(path: Path) -> None:
    done = shim(sys.executable, "--unix", str(path), "--", "sh", "-c", "echo ran")
    assert done.returncode == 125 and "No such file" in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.sandbox
@pytest.mark.usefixtures("namespaces")
def test_a_route_out_means_no_command(echo: Path) -> None:
    ip = shutil.which("ip")
    if ip is None:
        pytest.skip("ip is not installed")
    routed = f'{ip} address add 10.9.8.7/24 dev lo && {ip} route add default via 10.9.8.1 dev lo && exec "$@"'
    command = [sys.executable, "-I", "-S", SHIM, "--unix", str(echo), "--relay", "--", "sh", "-c", "echo ran"]
    done = subprocess.run(alone("/bin/sh", "-c", routed, "sh", *command), capture_output=True, text=True)
    assert done.returncode == 125 and "route out" in done.stderr and done.stdout == ""


@pythons
@pytest.mark.parametrize("args", [[], ["--unix"], ["--what"], ["--unix", "/x"], ["--control"]])
def test_usage_errors_say_so(python: str, args: list[str]) -> None:
    done = subprocess.run([python, "-I", "-S", SHIM, *args], capture_output=True, text=True)
    assert done.returncode == 1 and "shim" in done.stderr and "Traceback" not in done.stderr


def controlled(config: bytes, python: str = sys.executable) -> str:
    """What the shim says over its control descriptor when it is run outside of any sandbox."""
    ours, theirs = socket.socketpair()
    with ours:
        argv = [python, "-I", "-S", SHIM, "--control", str(theirs.fileno())]
        with subprocess.Popen(argv, pass_fds=[theirs.fileno()]):
            theirs.close()
            ours.sendall(config)
            ours.shutdown(socket.SHUT_WR)
            said = b""
            while block := ours.recv(65536):
                said += block
    return said.decode()


@pythons
def test_it_refuses_to_run_a_command_outside_of_a_boundary(python: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    said = controlled(b"uid=%d\0network=open\0argv=touch\0argv=%s\0\0" % (os.getuid(), os.fsencode(marker)), python)
    assert said.startswith("refused ") and "ready" not in said
    assert not marker.exists()


def test_a_configuration_that_ends_early_is_refused() -> None:
    assert controlled(b"argv=touch\0") == "refused the configuration ended early\n"
    read, write = os.pipe()
    os.write(write, b"a=1\0")
    os.close(write)
    with pytest.raises(Refused):
        read_config(read)
    os.close(read)


def test_records_keep_order_equals_signs_and_odd_bytes() -> None:
    config = Config(b"env=A=b=c\0env=\xff=\0one=x\0one=y\0")
    assert config.many("env") == [b"A=b=c", b"\xff="] and config.one("one") == "y" and config.one("two") is None
    config = Config(b"listen=proxy a 1\0listen=tcp a 2\0listen=dns a 3\0env=A=1\0explicit-env=B=2\0")
    config.do_without_transparent_egress()
    assert config.many("listen") == [b"proxy a 1", b"tcp a 2"] and config.many("env") == [b"A=1", b"B=2"]


EVERY_PORT = """
import importlib.util, socket
spec = importlib.util.spec_from_file_location("shim", SHIM)
shim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shim)
shim.make_every_address_local()
said = []
config = shim.Config(b"listen=tcp 0.0.0.0 80\\0listen-every=every 0.0.0.0 1\\0listen-every=every :: 1")
shim.set_every_port(config, 1, said.append)
opened = shim.open_listeners(config, said.append)
listeners = {":" in address: socket.socket(fileno=sock.detach()) for _, address, _, sock in opened}
for address, port in (("192.0.2.1", 25), ("198.18.0.1", 65535), ("2001:db8::1", 443), ("fd5b:6b65:7000::1", 1)):
    with socket.create_connection((address, port), 60) as client:
        with listeners[":" in address].accept()[0] as arrived:
            assert arrived.getsockname()[:2] == (address, port) and arrived.getpeername() == client.getsockname()
            client.sendall(b"over")
            client.shutdown(socket.SHUT_WR)
            assert arrived.makefile("rb").read() == b"over"
            arrived.sendall(b"back")
        assert client.recv(10) == b"back"
for address in ("127.0.0.1", "127.9.9.9", "::1"):
    try:
        socket.create_connection((address, 25), 60)
        said.append("connected to loopback")
    except ConnectionRefusedError:
        pass
print(said)
"""


@pythons
@pytest.mark.usefixtures("namespaces")
def test_every_port_of_every_address_but_loopback_arrives_at_one_listener(python: str) -> None:
    done = subprocess.run(
        alone(python, "-I", "-S", "-c", f"SHIM = {SHIM!r}\n{EVERY_PORT}"), capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_a_command_is_looked_for_as_a_shell_does() -> None:
    assert candidates(b"./x", b"/a:/b") == [b"./x"]
    assert candidates(b"x", b"/a::/b") == [b"/a/x", b"./x", b"/b/x"]


def test_more_listeners_than_one_message_takes_come_in_several() -> None:
    from skep_netshim.shim import hand_over

    ours, theirs = socket.socketpair()
    listeners = [("tcp", "127.0.0.1", number, socket.socket()) for number in range(260)]
    thread = threading.Thread(target=hand_over, args=(theirs, listeners))
    thread.start()
    counts: list[int] = []
    while sum(counts) < 260:
        message, ancillary, _, _ = ours.recvmsg(1 << 20, socket.CMSG_SPACE(4 * 253))
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        counts.append(len(fds))
        assert message.count(b'"kind"') == len(fds)
        assert (b'"more": true' in message) == (sum(counts) < 260)
        for fd in fds:
            os.close(fd)
    ours.sendall(b"go\n")
    thread.join()
    assert counts == [250, 10]
    for *_, sock in listeners:
        sock.close()
    ours.close()
    theirs.close()


class Tunnels:
    """A proxy that answers one CONNECT and then echoes; `answer` is what it answers."""

    def __init__(self, answer: bytes) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.answer = answer
        self.head = b""
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        client, _ = self.server.accept()
        with client:
            while not self.head.endswith(b"\r\n\r\n"):
                self.head += client.recv(1)
            client.sendall(self.answer)
            if b" 200 " not in self.answer:
                return
            while block := client.recv(65536):
                client.sendall(block)

    def close(self) -> None:
        self.thread.join()
        self.server.close()


@pythons
@pytest.mark.parametrize("host", ["a.test", "2001:db8::1"])
def test_it_joins_its_standard_input_and_output_to_a_host(python: str, host: str) -> None:
    proxy = Tunnels(b"HTTP/1.1 200 Connection established\r\n\r\nSSH-2.0-first\r\n")
    sent = os.urandom(1 << 20)
    command = [python, "-I", "-S", SHIM, "--connect", host, "22", "--port", str(proxy.port)]
    done = subprocess.run(command, input=sent, capture_output=True, timeout=60)
    proxy.close()
    assert done.stdout == b"SSH-2.0-first\r\n" + sent and done.returncode == 0, done.stderr
    shown = f"[{host}]" if ":" in host else host
    assert proxy.head.startswith(f"CONNECT {shown}:22 HTTP/1.1\r\nHost: {shown}:22\r\n".encode())


@pythons
def test_a_host_that_is_denied_is_told_with_its_reason(python: str) -> None:
    proxy = Tunnels(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 29\r\n\r\nskep: bad.test is not allowed\n")
    command = [python, "-I", "-S", SHIM, "--connect", "bad.test", "22", "--port", str(proxy.port)]
    ours, theirs = socket.socketpair()
    with ours, theirs:  # a standard input that stays open, as ssh's does
        running = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, error = running.communicate(timeout=60)
    proxy.close()
    assert running.returncode == 1 and out == b"" and error == b"skep: bad.test is not allowed\n"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package whose bytecode nobody has made yet."""
    shutil.copytree(Path(SHIM).parent, tmp_path / "skep_netshim", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "skep_netshim"


def compiled_by(python: str, package: Path, *options: str) -> str:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from skep_netshim import compiled; print(compiled() or '')"
    argv = [python, "-I", *options, "-c", code, str(package.parent)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


@pythons
def test_its_bytecode_is_made_and_runs_in_the_interpreter_that_made_it(python: str, copied: Path) -> None:
    made = compiled_by(python, copied)
    assert Path(made).parent == copied / "__pycache__"
    done = subprocess.run([python, "-I", "-S", made], capture_output=True, text=True)
    assert "python3 -I -S shim.py --control FD" in done.stderr, done.stderr


@pytest.mark.parametrize("stale", ["source", "magic"])
def test_stale_bytecode_is_made_again(stale: str, copied: Path) -> None:
    made = Path(compiled_by(sys.executable, copied))
    good = made.read_bytes()
    if stale == "source":
        with open(copied / "shim.py", "a") as source:
            source.write("\n# longer\n")
    else:
        made.write_bytes(b"\0\0\r\n" + good[4:])
    assert compiled_by(sys.executable, copied) == str(made)
    assert made.read_bytes()[:4] == good[:4]
    assert (made.read_bytes() == good) == (stale == "magic")


def test_where_no_bytecode_may_be_written_there_is_none(copied: Path) -> None:
    assert compiled_by(sys.executable, copied, "-B") == ""
    assert not (copied / "__pycache__").exists()
    assert compiled_by(sys.executable, copied) != ""  # the control
