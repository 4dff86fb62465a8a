"""What works inside, and what the filter refuses when it is really installed."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from glob import glob

import pytest
from skep_bwrap.seccomp import ARCHES, DENIED, DENIED_STRICT

from .box import Box

pytestmark = pytest.mark.sandbox

CALLS = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number in json.loads(sys.argv[1]).items():
    result = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    found[name] = ctypes.get_errno() if result == -1 else 0
print(json.dumps(found))
"""


def calls(names: tuple[str, ...]) -> list[str]:
    numbers = ARCHES[platform.machine()].numbers
    return ["python3", "-c", CALLS, json.dumps({name: numbers[name] for name in names})]


def test_each_denied_call_fails_with_eperm_and_elsewhere_does_not(either: Box) -> None:
    result = either.run(calls(DENIED))
    assert json.loads(result.out) == dict.fromkeys(DENIED, errno.EPERM)
    control = subprocess.run(calls(DENIED), capture_output=True, text=True, check=True)
    others = {name for name, code in json.loads(control.stdout).items() if code != errno.EPERM}
    assert others >= {"add_key", "keyctl", "request_key"}
    if os.geteuid() == 0:
        assert others >= set(DENIED) - {"syslog"}


def test_strict_denies_mounts_and_namespaces(either: Box) -> None:
    names = (*DENIED_STRICT, "unshare", "clone3")
    inside = json.loads(either.run(calls(names), strict=True).out)
    assert inside == {**dict.fromkeys(names, errno.EPERM), "clone3": errno.ENOSYS}
    loose = json.loads(either.run(calls(names)).out)
    if os.geteuid() == 0:  # who gets no user namespace in any case
        assert loose["clone3"] == errno.ENOSYS and loose["unshare"] == errno.EPERM
    else:
        assert loose["clone3"] != errno.ENOSYS and loose["unshare"] == errno.EINVAL


TERMINAL = """
import fcntl, os, pty, sys
ours, theirs = pty.openpty()
for command in (0x5412, 0x541C, 0xDEAD00005412):
    try:
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p]
        print("ok" if libc.ioctl(theirs, command, b"x") == 0 else ctypes.get_errno(), end=" ")
    except OSError as error:
        print(error.errno, end=" ")
fcntl.ioctl(theirs, 0x5413, b"\\0" * 8)
print("size")
"""


def test_typing_into_a_terminal_is_refused_and_asking_its_size_is_not(either: Box) -> None:
    assert either.python(TERMINAL).out == "1 1 1 size\n"
    control = subprocess.run([sys.executable, "-c", TERMINAL], capture_output=True, text=True, check=True).stdout
    assert "1 1 1" not in control


FAMILIES = """
import socket
packet, alg, vsock, diag, uevent = (17, 3, 0), (38, 5, 0), (40, 1, 0), (16, 3, 4), (16, 3, 15)
for family, kind, protocol in (packet, alg, vsock, diag, uevent, (16, 3, 0), (2, 1, 0), (1, 1, 0)):
    try:
        socket.socket(family, kind, protocol).close()
        print("ok", end=" ")
    except OSError as error:
        print(error.errno, end=" ")
"""


def test_socket_families(either: Box) -> None:
    refused = f"{errno.EAFNOSUPPORT} "
    assert either.python(FAMILIES).out == refused * 5 + "ok ok ok "
    assert either.python(FAMILIES, strict=True).out == refused * 5 + "ok ok " + refused
    control = subprocess.run([sys.executable, "-c", FAMILIES], capture_output=True, text=True, check=True).stdout
    assert control.split()[3:5] == ["ok", "ok"]


# mov eax, 20 (getpid of i386); int 0x80; ret
COMPAT = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))(), flush=True)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there are two kinds of calls on x86-64 only")
def test_calls_of_another_architecture_end_the_process(either: Box) -> None:
    assert either.python(COMPAT).code in (128 + 31, 128 + 11)
    assert either.python(COMPAT.replace("cd80", "9090")).code == 0


WORKS = {
    "asyncio": "import asyncio; print(asyncio.run(asyncio.sleep(0, 'fine')))",
    "subprocess in asyncio": """
import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("echo", "fine", stdout=-1)
    print((await process.communicate())[0].decode(), end="")
asyncio.run(main())
""",
    "multiprocessing": """
import multiprocessing
def child(queue, lock):
    with lock:
        queue.put("fine")
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue, lock = context.Queue(), context.Semaphore()
    context.Process(target=child, args=(queue, lock)).start()
    print(queue.get())
""",
    "multiprocessing that spawns": """
import multiprocessing, os, sys
def child(number):
    return number * 2
if __name__ == "__main__":
    for way in ("spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(3) as pool:
            assert pool.map(child, range(50)) == [number * 2 for number in range(50)]
    print("fine")
""",
    "named semaphores": """
import ctypes, ctypes.util
libc = ctypes.CDLL(None, use_errno=True)
libc.sem_open.restype = ctypes.c_void_p
sem = libc.sem_open(b"/skep", 0o100, 0o600, 1)
assert sem and libc.sem_wait(ctypes.c_void_p(sem)) == 0 and libc.sem_trywait(ctypes.c_void_p(sem)) == -1
print("fine" if libc.sem_unlink(b"/skep") == 0 else ctypes.get_errno())
""",
    "a server with workers": """
import os, signal, socket, time
server = socket.create_server(("127.0.0.1", 0))
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        while True:
            connection = server.accept()[0]
            connection.sendall(b"fine")
            connection.close()
    pids.append(pid)
said = {socket.create_connection(server.getsockname()).recv(9) for _ in range(40)}
for pid in pids:
    os.kill(pid, signal.SIGTERM)
assert all(os.waitpid(pid, 0)[1] == signal.SIGTERM for pid in pids)
print(*[word.decode() for word in said])
""",
    "shared memory": """
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(create=True, size=16)
block.buf[:4] = b"fine"
print(bytes(block.buf[:4]).decode())
block.close()
block.unlink()
""",
    "threads": "import threading; threading.Thread(target=print, args=('fine',)).start()",
    "unix sockets": """
import socket
server = socket.socket(socket.AF_UNIX); server.bind("s"); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect("s"); client.sendall(b"fine")
print(server.accept()[0].recv(9).decode())
""",
    "abstract sockets": """
import socket
server = socket.socket(socket.AF_UNIX); server.bind("\\0s"); server.listen()
client = socket.socket(socket.AF_UNIX); client.connect("\\0s"); client.sendall(b"fine")
print(server.accept()[0].recv(9).decode())
""",
    "loopback": """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname()); client.sendall(b"fine")
print(server.accept()[0].recv(9).decode())
""",
    "a terminal of its own": "import pty, os; a, b = pty.openpty(); print('fine' if os.isatty(b) else os.ttyname(b))",
    "temporary files": """
import tempfile, os
print("fine" if all(os.path.isdir(tempfile.mkdtemp(dir=d)) for d in ("/tmp", "/var/tmp", "/dev/shm")) else "")
""",
    "inotify and epoll": "import select; select.epoll().close(); print('fine')",
}


@pytest.mark.parametrize("name", WORKS)
def test_what_programs_need_works(box: Box, name: str) -> None:
    (box.ws / "program.py").write_text(WORKS[name])  # what spawns imports it anew
    result = box.run(["python3", "program.py"])
    assert (result.code, result.out) == (0, "fine\n"), result.err


NODE = """
const { Worker } = require("worker_threads"), { fork } = require("child_process");
const file = "/tmp/child.js";
require("fs").writeFileSync(file, "process.on('message', n => { process.send(n * 2); process.disconnect(); })");
const thread = "require('worker_threads').parentPort.postMessage(2)";
const threads = [1, 2].map(() => new Promise(done => new Worker(thread, { eval: true }).on("message", done)));
const children = [1, 1].map(n => new Promise(done => { const c = fork(file); c.on("message", done); c.send(n); }));
Promise.all([...threads, ...children]).then(all => console.log("fine", all.reduce((a, b) => a + b)));
"""
ATTACHED = """
sleep 60 & child=$!
strace -o t -p $child 2>said &
until grep -q attached said; do sleep 0.01; done
kill $child; wait; cat t
"""
MAKEFILE = "all: 1 2 3 4 5 6 7 8\n%:\n\t@sleep 0.1; echo $@ > $@\n"


@pytest.mark.parametrize(
    ("program", "argv", "words"),
    [
        ("gdb", ["gdb", "-q", "-batch", "-ex", "run", "/bin/true"], "exited normally"),
        ("strace", ["sh", "-c", "strace -f -o t sh -c 'true | true' && cat t"], "exited with 0"),
        ("gdb", ["sh", "-c", "sleep 60 & gdb -q -batch -p $! -ex detach; kill $!"], "detached"),
        ("strace", ["sh", "-c", ATTACHED], "SIGTERM"),
        ("node", ["node", "-e", "console.log(require('child_process').execSync('echo fine') + '')"], "fine"),
        ("node", ["node", "-e", NODE], "fine 8"),
        ("make", ["sh", "-c", 'printf "%s" "$0" > Makefile; make -j8 && cat [1-8] | wc -l', MAKEFILE], "8"),
        ("git", ["sh", "-c", "git init -q r && cd r && git status && ls -a"], ".git"),
        ("gcc", ["sh", "-c", "echo 'int main(){return 0;}' > m.c && gcc m.c -o m && ./m && echo fine"], "fine"),
    ],
)
def test_programs_of_others_work(box: Box, program: str, argv: list[str], words: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    result = box.run(argv)
    assert result.code == 0 and words in result.out, result.err


def test_a_database_runs_and_answers(box: Box) -> None:
    """Many processes, System V shared memory and semaphores, a Unix socket of its own, signals between them."""
    folders = [os.path.dirname(shutil.which("initdb") or ""), *sorted(glob("/usr/lib/postgresql/*/bin"))[::-1]]
    tools = next((folder for folder in folders if os.path.exists(f"{folder}/pg_ctl")), None)
    if tools is None or os.geteuid() == 0:
        pytest.skip("PostgreSQL is not installed, or we are root, which it refuses")
    script = f"""
PATH={tools}:$PATH
initdb -D data -A trust -N >log || cat log
pg_ctl -D data -w -l log -o "-k $PWD -h '' -c shared_memory_type=sysv" start >>log || cat log
psql -h $PWD -d postgres -Atc "select sum(n) from generate_series(1, 100000) n"
pg_ctl -D data -w -m fast stop >>log && echo stopped
"""
    result = box.sh(script)
    assert result.out == "5000050000\nstopped\n", result.err


PAGE = """<h1 id=a></h1><script>
new Worker(URL.createObjectURL(new Blob(["postMessage(6 * 7)"]))).onmessage = e => a.textContent = "fine " + e.data
</script>"""


@pytest.mark.parametrize("sandbox", ["--no-sandbox", "--no-first-run"], ids=["without its own", "with its own"])
def test_a_browser_renders_a_page(either: Box, sandbox: str) -> None:
    """Zygotes, namespaces within ours, shared memory, sockets of its own. As root it refuses to have a sandbox."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    (either.ws / "page.html").write_text(PAGE)
    options = ["--headless", "--disable-gpu", "--virtual-time-budget=5000", f"--user-data-dir={either.ws}/profile"]
    argv = [chromium, sandbox, *options, "--dump-dom", f"file://{either.ws}/page.html"]
    result = either.run(argv)
    if os.geteuid() == 0 and sandbox != "--no-sandbox":
        assert "Running as root without --no-sandbox" in result.err
    else:
        assert result.code == 0 and "fine 42" in result.out, result.err
        assert either.run(argv, strict=True).code != 0  # it cannot do without Unix sockets


NESTED = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]


def test_sandboxes_nest_for_ordinary_users_and_not_for_root(either: Box) -> None:
    nested = either.run([either.bwrap, *NESTED, "sh", "-c", "id -u; ls -d /proc/[0-9]* | wc -l"])
    unshared = either.run(["unshare", "-Urm", "sh", "-c", "mount -t tmpfs none /mnt && echo fine"])
    if os.geteuid() == 0:
        # A uid 0 with capabilities could mount what is the host's uid 0's to write, and give files capabilities.
        assert nested.code != 0 and unshared.code != 0
    else:
        assert nested.out.startswith(f"{os.getuid()}\n") and nested.code == 0, nested.err
        assert unshared.out == "fine\n"
    assert either.run(["unshare", "-Ur", "true"], strict=True).code != 0


def test_the_worker_is_who_the_caller_is(either: Box) -> None:
    result = either.sh("id -u; id -g; stat -c %u:%g .; touch made; stat -c %u:%g made")
    own = f"{os.getuid()}:{os.getgid()}"
    assert result.out.split() == [str(os.getuid()), str(os.getgid()), own, own]
    assert (either.ws / "made").stat().st_uid == os.getuid()


def test_git_takes_a_repository_for_the_callers_own_inside_and_what_was_made_there_outside(either: Box) -> None:
    said = either.sh("git init -q repo && cd repo && echo x > file && git add file && git status --porcelain")
    assert (said.code, said.out, said.err) == (0, "A  file\n", "")
    for made in (either.ws / "repo", either.ws / "repo/file", either.ws / "repo/.git/index"):
        assert (made.stat().st_uid, made.stat().st_gid) == (os.getuid(), os.getgid())
    outside = subprocess.run(["git", "status", "--porcelain"], cwd=either.ws / "repo", capture_output=True, text=True)
    assert (outside.stdout, outside.stderr) == ("A  file\n", "")
