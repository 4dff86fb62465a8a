# ruff: noqa: E501 (a table)
"""What a worker who has read the source would try, by the guarantee it would break."""

from __future__ import annotations

import os

from .cage import Attempt, matrix

ROOT = os.geteuid() == 0

# name: (statements on a folder D and the file F in it, what becomes of them on a read-only mount)
CHANGES = {
    "create": ("os.close(os.open(D + '/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY))", "EROFS"),
    "append": ("open(F, 'a').close()", "EROFS"),
    "open to read and write": ("os.close(os.open(F, os.O_RDWR))", "EROFS"),
    "truncate": ("os.truncate(F, 0)", "EROFS"),
    "truncate while opening to read": ("os.close(os.open(F, os.O_RDONLY | os.O_TRUNC))", "EROFS"),
    "write through a link there": ("open(D + '/link', 'a').close()", "EROFS"),
    "write through /proc/self/root": ("open('/proc/self/root' + F, 'a').close()", "EROFS"),
    "write through /proc/self/fd": ("fd = os.open(F, os.O_RDONLY); os.open(f'/proc/self/fd/{fd}', os.O_RDWR)", "EROFS"),
    "write through an O_PATH descriptor": (
        "d = os.open(D, os.O_PATH); os.open('file', os.O_WRONLY, dir_fd=d)",
        "EROFS",
    ),
    "unlink": ("os.unlink(F)", "EROFS"),
    "rename away": ("os.rename(F, D + '/other')", "EROFS"),
    "rename out of it": ("os.rename(F, W + '/stolen')", "EXDEV"),
    "rename into it": ("os.rename(W + '/mine', D + '/mine')", "EXDEV"),
    "rename over it": ("os.rename(W + '/mine', F)", "EXDEV"),
    "hard link into it": ("os.link(W + '/mine', D + '/mine')", "EROFS"),
    "hard link out of it": ("os.link(F, W + '/alias')", "EXDEV"),
    "mkdir": ("os.mkdir(D + '/made')", "EROFS"),
    "rmdir": ("os.rmdir(D + '/empty')", "EROFS"),
    "symlink": ("os.symlink('/', D + '/pointer')", "EROFS"),
    "mkfifo": ("os.mkfifo(D + '/pipe')", "EROFS"),
    "bind a socket": ("os.chdir(D); socket.socket(socket.AF_UNIX).bind('bound')", "EROFS"),
    "unnamed file": ("os.close(os.open(D, os.O_TMPFILE | os.O_WRONLY))", "EROFS"),
    "chmod": ("os.chmod(F, 0o777)", "EROFS"),
    "chmod of the folder": ("os.chmod(D, 0o777)", "EROFS"),
    "fchmod": ("os.fchmod(os.open(F, os.O_RDONLY), 0o777)", "EROFS"),
    "chown": ("os.chown(F, os.getuid(), os.getgid())", "EROFS"),
    "times": ("os.utime(F)", "EROFS"),
    "extended attribute": ("os.setxattr(F, 'user.x', b'1')", "EROFS"),
}

OUTSIDE = list(matrix(CHANGES, {"beside the root": "O", "a link to beside the root": "W + '/to-out'"}))
PROTECTED: list[Attempt] = [
    *matrix(CHANGES, {"a protected folder": "W + '/kept'", "a deep one": "W + '/deep/down/kept'"}),
    Attempt("move a protected folder", "os.rename(W + '/kept', W + '/moved')", ("EBUSY",)),
    Attempt("move what is above one", "os.rename(W + '/deep', W + '/moved')", ("EBUSY",)),
    Attempt("move what is just above one", "os.rename(W + '/deep/down', W + '/deep/moved')", ("EBUSY",)),
    Attempt(
        "swap what is above one",
        "os.mkdir(W + '/x'); call('renameat2', -100, (W + '/deep').encode(), -100, (W + '/x').encode(), 2)",
        ("EBUSY",),
    ),
    Attempt("replace a protected file", "os.rename(W + '/mine', W + '/kept.txt')", ("EBUSY",)),
    Attempt("unlink a protected file", "os.unlink(W + '/kept.txt')", ("EBUSY",)),
    Attempt("write a protected file", "open(W + '/kept.txt', 'a').close()", ("EROFS",)),
    Attempt("chmod a protected file", "os.chmod(W + '/kept.txt', 0o777)", ("EROFS",)),
    Attempt("hard link a protected file", "os.link(W + '/kept.txt', W + '/alias')", ("EXDEV",)),
    Attempt("remove an empty folder above", "import shutil; shutil.rmtree(W + '/deep')", ("EROFS", "EBUSY")),
]

LINKS: list[Attempt] = [
    Attempt("a link made before", "open(W + '/to-file', 'a').close()", ("EROFS",)),
    Attempt("a folder link made before", "open(W + '/to-out/new', 'x').close()", ("EROFS",)),
    Attempt("a link made now", "os.symlink(O, W + '/l'); open(W + '/l/new', 'x').close()", ("EROFS",)),
    Attempt("a chain of links", "os.symlink(O, W + '/a'); os.symlink('a', W + '/b'); open(W + '/b/file', 'a').close()", ("EROFS",)),
    Attempt("a link through /proc", "os.symlink('/proc/self/root' + O, W + '/p'); open(W + '/p/file', 'a').close()", ("EROFS",)),
    Attempt("dots in a path", "open(W + '/kept/../../out/file', 'a').close()", ("EROFS",)),
    Attempt("a folder that is left behind", "os.mkdir('d'); os.chdir('d'); os.rename(W + '/d', W + '/e'); open('../../out/file', 'a').close()", ("EROFS",)),
    Attempt("a dangling link to create through", "os.symlink(O + '/made', W + '/dangling'); open(W + '/dangling', 'w').close()", ("EROFS",)),
]  # fmt: skip

HIDDEN: list[Attempt] = [
    *(
        attempt
        for place, folder in (("in the root", "W + '/secret'"), ("beside it", "O + '/hidden'"), ("by a link", "W + '/to-secret'"))
        for attempt in (
            Attempt(f"read {place}", f"open({folder} + '/file').read()", ("EACCES",)),
            Attempt(f"list {place}", f"os.listdir({folder})", ("EACCES",)),
            Attempt(f"look {place}", f"os.stat({folder} + '/file')", ("EACCES",)),
            Attempt(f"enter {place}", f"os.chdir({folder})", ("EACCES",)),
            Attempt(f"create {place}", f"open({folder} + '/decoy', 'x').close()", ("EACCES",)),
            Attempt(f"open it up {place}", f"os.chmod({folder}, 0o777)", ("EROFS",)),
            Attempt(f"by an O_PATH descriptor {place}", f"d = os.open({folder}, os.O_PATH); os.open('file', os.O_RDONLY, dir_fd=d)", ("EACCES",)),
            Attempt(f"through /proc/self/root {place}", f"open('/proc/self/root' + {folder} + '/file').read()", ("EACCES",)),
        )
    ),
    Attempt("read a hidden file", "open(W + '/secret.txt').read()", ("EACCES",)),
    Attempt("write a hidden file", "open(W + '/secret.txt', 'w').close()", ("EACCES",)),
    Attempt("replace a hidden file", "os.rename(W + '/mine', W + '/secret.txt')", ("EBUSY",)),
    Attempt("unlink a hidden file", "os.unlink(W + '/secret.txt')", ("EBUSY",)),
    Attempt("move a hidden folder", "os.rename(W + '/secret', W + '/moved')", ("EBUSY",)),
    Attempt("hard link a hidden file", "os.link(W + '/secret.txt', W + '/alias')", ("EXDEV", "EPERM")),
    Attempt("a temporary file of the host", "open(TMP).read()", ("ENOENT",)),
    Attempt("the environment of pid 1", "open('/proc/1/environ').read()", ("EACCES",), instead="open(f'/proc/{PID}/environ').read()"),
    Attempt("by a file handle", """
handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128))
ident = ctypes.c_int()
call('name_to_handle_at', -100, (W + '/mine').encode(), handle, ctypes.byref(ident), 0)
call('open_by_handle_at', os.open(W, os.O_RDONLY), handle, os.O_RDONLY)
""", ("EPERM",), "root"),
]  # fmt: skip

# Mount tricks in a user namespace of the worker's own, where it has every capability.
BIND, REC, REMOUNT, RDONLY, MOVE, DETACH = 4096, 16384, 32, 1, 8192, 2
PEELING: list[Attempt] = [
    Attempt("remount the root writable", f"namespace(); mount(None, '/', None, {REMOUNT | BIND})", ("EPERM",), "root"),
    Attempt("remount a protected folder writable", f"namespace(); mount(None, W + '/kept', None, {REMOUNT | BIND})", ("EPERM",), "nobody"),
    Attempt("unmount a protected folder", f"namespace(); call('umount2', (W + '/kept').encode(), {DETACH})", ("EINVAL", "EPERM"), "nobody"),
    Attempt("unmount a hide", f"namespace(); call('umount2', (W + '/secret').encode(), {DETACH})", ("EINVAL", "EPERM"), "nobody"),
    Attempt("unmount the root folder", f"namespace(); call('umount2', W.encode(), {DETACH})", ("EINVAL", "EPERM"), "nobody"),
    Attempt("bind the root folder without its covers", f"namespace(); mount(W, W + '/deep', None, {BIND}); open(W + '/deep/secret/file').read()", ("EINVAL", "EPERM"), instead="open(W + '/secret/file').read()"),
    Attempt("clone the tree without its covers", "namespace(); call('open_tree', -100, W.encode(), 1)", ("EINVAL", "EPERM"), "nobody"),
    Attempt("move a hide away", f"namespace(); mount(W + '/secret', W + '/deep', None, {MOVE})", ("EINVAL", "EPERM"), "nobody"),
    Attempt("overlay over the covers", "namespace(); mount('overlay', '/mnt', 'overlay', 0, f'lowerdir={W}'); open('/mnt/secret/file').read()", ("EINVAL", "EPERM", "ELOOP", "EACCES", "ENODEV"), instead="open(W + '/secret/file').read()"),
    Attempt("overlay with two lower folders", "namespace(); mount('overlay', '/mnt', 'overlay', 0, f'lowerdir={W}:{O}'); open('/mnt/hidden/file').read()", ("EINVAL", "EPERM", "ELOOP", "EACCES", "ENODEV"), instead="open(O + '/hidden/file').read()"),
    Attempt("pivot to what is below", f"namespace(); mount('t', '/mnt', 'tmpfs'); os.mkdir('/mnt/o'); call('pivot_root', b'/mnt', b'/mnt/o'); call('umount2', b'/o/proc', {DETACH})", ("EINVAL", "EPERM", "EBUSY", "EOVERFLOW"), "nobody"),
    Attempt("chroot out by a descriptor", "namespace(); d = os.open('/', os.O_RDONLY); os.chroot(W); os.fchdir(d); os.chdir('..' + '/..' * 20); open('.' + O + '/file', 'a').close()", ("EROFS", "EPERM"), instead="open(O + '/file', 'a').close()"),
    Attempt("join the sandbox's own namespaces", "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)", ("EACCES",), "root", "call('setns', os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)"),
    Attempt("mount without a namespace", "mount('t', '/mnt', 'tmpfs')", ("EPERM",), "root", "call('unshare', 0x20000); mount('none', '/', None, 16384 | (1 << 18)); mount('t', '/mnt', 'tmpfs')"),
    Attempt("mount by the new calls", "if libc.syscall(430, b'tmpfs', 0) < 0: raise OSError(ctypes.get_errno(), '')", ("EPERM",), "root"),
    Attempt("chroot without a namespace", "os.chroot(W)", ("EPERM",), "root"),
]  # fmt: skip


def opened(path: str, expected: tuple[str, ...] = ("EROFS", "EACCES", "EPERM", "ENOENT")) -> Attempt:
    return Attempt(f"open {path} to write", f"os.close(os.open({path!r}, os.O_WRONLY))", expected, "root")


def read(path: str) -> Attempt:
    body = f"os.read(os.open({path!r}, os.O_RDONLY | os.O_NONBLOCK), 1)"
    return Attempt(f"read {path}", body, ("EACCES", "EPERM", "ENOENT"), "nobody")


KERNEL: list[Attempt] = [
    *(opened(f"/proc/sys/{name}") for name in (
        "kernel/core_pattern", "kernel/modprobe", "kernel/sysrq", "kernel/panic", "kernel/randomize_va_space",
        "vm/swappiness", "vm/drop_caches", "vm/overcommit_memory", "fs/file-max", "fs/suid_dumpable",
    )),
    opened("/proc/sysrq-trigger"),
    *(Attempt(f"change {path}", f"os.close(os.open({path!r}, os.O_WRONLY))", ("EROFS", "EACCES", "EPERM", "ENOENT"), "nobody") for path in (
        "/proc/irq/default_smp_affinity", "/proc/bus/pci/devices", "/proc/scsi/scsi", "/proc/acpi/wakeup", "/proc/mtrr",
        "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/cgroup.procs", "/sys/kernel/debug/sched/debug", "/sys/kernel/tracing/trace",
    )),
    *(read(path) for path in (
        "/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/vmallocinfo", "/proc/slabinfo",
        "/proc/kpageflags", "/sys/kernel/debug/tracing/trace", "/sys/kernel/tracing/trace", "/dev/kmsg", "/dev/mem",
        "/dev/vda", "/dev/sda", "/dev/loop0", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vsock",
    )),
    # An ordinary user's own keys are listed by name; covering the list would keep sandboxes from nesting.
    Attempt("read /proc/keys", "open('/proc/keys').read()", ("EACCES",) if ROOT else ("ok",), "nobody"),
    Attempt("name the host", "call('sethostname', b'x', 1)", ("EPERM",), "root", "call('unshare', 0x04000000); call('sethostname', b'x', 1)"),
    Attempt("set the clock", "import time; time.clock_settime(0, time.time())", ("EPERM",), "nobody"),
    Attempt("load a module", "call('syscall', 175, b'', 0, b'')", ("EPERM",), "nobody"),
    Attempt("read the kernel's log", "call('klogctl', 10, None, 0)", ("EPERM",), "root"),
    Attempt("raise a limit", "import resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))", ("ValueError: not allowed to raise maximum limit",), "root"),
    Attempt("make a device", "os.mknod(W + '/dev', stat.S_IFCHR | 0o666, os.makedev(1, 3))", ("EPERM",), "root"),
    Attempt("make a block device", "os.mknod(W + '/blk', stat.S_IFBLK | 0o666, os.makedev(254, 0))", ("EPERM",), "root"),
    Attempt("use a device of the workspace", "os.mknod(W + '/n', stat.S_IFCHR | 0o666, 0); os.close(os.open(W + '/n', os.O_RDWR))", ("EPERM", "EACCES"), "nobody"),
    Attempt("give a file a capability", "os.setxattr(W + '/mine', 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))", ("EPERM",), "root"),
    Attempt("give one as uid 0 of a namespace", "namespace(); os.setxattr(W + '/mine', 'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))", ("EPERM", "ok"), "nobody"),
    *(Attempt(f"chmod {node}", f"os.chmod({node!r}, 0o600)", ("EROFS", "EPERM"), "nobody") for node in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")),
    Attempt("chown /dev/null", "os.chown('/dev/null', os.getuid(), os.getgid())", ("EROFS", "EPERM"), "nobody"),
    Attempt("replace /dev/null", "os.rename(W + '/mine', '/dev/null')", ("EBUSY", "EXDEV", "EROFS"), "nobody"),
    Attempt("create in /dev", "open('/dev/made', 'x').close()", ("EROFS",), "root", "open('/dev/skep-cage', 'x').close(); os.unlink('/dev/skep-cage')"),
    Attempt("create in /run", "open('/run/made', 'x').close()", ("EROFS",), "root", "open('/run/skep-cage', 'x').close(); os.unlink('/run/skep-cage')"),
    Attempt("a lease on a file of the host, which stops those who open it", "fcntl.fcntl(os.open(O + '/file', os.O_RDONLY), 1024, 1)", ("EPERM",)),
    Attempt("a lease on a file of one's own", "fcntl.fcntl(os.open(W + '/mine', os.O_RDONLY), 1024, 1)", ("EPERM",)),
    *(Attempt(f"ask {name} of the terminal", f"fcntl.ioctl(os.openpty()[1], {number}, bytes(64))", expected, "nobody") for name, number, expected in (
        ("to type", 0x5412, ("EPERM",)), ("a console's paste", 0x541C, ("EPERM",)), ("for all consoles", 0x541D, ("EPERM", "EBUSY", "EACCES")),
        ("for another keymap", 0x4B47, ("ENOTTY", "EPERM")), ("for another text of a key", 0x4B49, ("ENOTTY", "EPERM")),
    )),
    *(Attempt(f"mount {kind} in a namespace", f"namespace(); mount('x', '/mnt', {kind!r}); os.listdir('/mnt')", ("EPERM", "EBUSY", "ENODEV", "EINVAL"), "nobody") for kind in (
        "ext4", "debugfs", "tracefs", "securityfs", "configfs", "devtmpfs", "pstore", "efivarfs", "nfsd", "autofs",
    )),
    Attempt("a cgroup of the host in a namespace", "namespace(); call('unshare', 0x02000000); mount('x', '/mnt', 'cgroup2'); open('/mnt/cgroup.procs', 'w').write('1')", ("EPERM", "EACCES", "EBUSY"), "nobody"),
    Attempt("a new /proc in a namespace", "namespace(); mount('x', '/mnt', 'proc'); open('/mnt/sys/kernel/core_pattern', 'w').close()", ("EPERM", "EACCES"), "nobody"),
    Attempt("a new /sys in a namespace", "namespace(); call('unshare', 0x40000000); mount('x', '/mnt', 'sysfs'); open('/mnt/kernel/mm/ksm/run', 'w').close()", ("EPERM", "EACCES"), "nobody"),
    Attempt("a user namespace by unshare", "call('unshare', 0x10000000)", ("EPERM",) if ROOT else ("ok",)),
    Attempt("a user namespace by clone", """
pid = libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0)
if pid == 0: os._exit(0)
if pid < 0: raise OSError(ctypes.get_errno(), '')
""", ("EPERM",) if ROOT else ("ok",)),
    Attempt("swap", "call('swapon', (W + '/mine').encode(), 0)", ("EPERM",), "nobody"),
    Attempt("account for processes", "call('acct', (W + '/mine').encode())", ("EPERM", "ENOSYS"), "nobody"),
    Attempt("quotas", "call('quotactl', 0x800003 << 8, b'/dev/vda', 0, None)", ("EPERM", "ENOENT", "ENOSYS", "ENODEV", "EACCES", "ESRCH", "EINVAL", "ENOTBLK"), "nobody"),
    Attempt("more priority", "os.setpriority(os.PRIO_PROCESS, 0, -5)", ("EPERM", "EACCES"), "root"),
    Attempt("a realtime schedule", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", ("EPERM",), "root"),
    Attempt("watch all of a file system", "call('fanotify_init', 0, 0)", ("EPERM", "ENOSYS"), "root"),
    Attempt("make a file immutable", "fcntl.ioctl(os.open(W + '/mine', os.O_RDONLY), 0x40086602, struct.pack('l', 16))", ("EPERM",), "root", instead="for flag in (16, 0): fcntl.ioctl(os.open(W + '/mine', os.O_RDONLY), 0x40086602, struct.pack('l', flag))"),
    Attempt("keep pages from being swapped", "call('mlockall', 3); m = mmap.mmap(-1, 64 << 20); m.write(bytes(64 << 20))", ("EPERM", "ENOMEM", "EAGAIN"), "root"),
    Attempt("break the pid namespace by a signal to pid 1", "os.kill(1, 9); import time; time.sleep(0.1); os.kill(1, 0); raise OSError(16, '')", ("EBUSY", "EPERM"), "nobody"),
    Attempt("chmod of the stdin", "os.fchmod(0, 0o600)", ("EROFS", "EPERM"), "nobody"),
]  # fmt: skip

PROCESSES: list[Attempt] = [
    Attempt("signal", "os.kill(PID, 0)", ("ESRCH",)),
    Attempt("a descriptor for it", "os.pidfd_open(PID)", ("ESRCH",)),
    Attempt("trace", "call('ptrace', 0x4206, PID, None, None); call('ptrace', 17, PID, None, None)", ("ESRCH",), "nobody"),
    Attempt("read its command line", "open(f'/proc/{PID}/cmdline').read()", ("ENOENT",)),
    Attempt("change its priority", "os.setpriority(os.PRIO_PROCESS, PID, 5)", ("ESRCH",)),
    Attempt("move it to a processor", "os.sched_setaffinity(PID, os.sched_getaffinity(0))", ("ESRCH",)),
    Attempt("its group", "os.getpgid(PID)", ("ESRCH",)),
    Attempt("trace pid 1", "call('ptrace', 0x4206, 1, None, None)", ("EPERM",), "nobody"),
    Attempt("write the memory of pid 1", "os.open('/proc/1/mem', os.O_RDWR)", ("EACCES",), instead="os.open('/proc/self/mem', os.O_RDWR)"),
    Attempt("read the memory of pid 1", "b = ctypes.create_string_buffer(8); iov = struct.pack('PN', ctypes.addressof(b), 8); call('process_vm_readv', 1, iov, 1, iov, 1, 0)", ("EPERM",), "nobody"),
    *(Attempt(f"pid 1's {name}", f"os.stat('/proc/1/{name}/.')", ("EACCES",), instead=f"os.stat(f'/proc/{{PID}}/{name}/.')") for name in ("root", "cwd")),
    Attempt("pid 1's descriptors", "os.open('/proc/1/fd/0', os.O_RDONLY)", ("EACCES",), instead="os.open(f'/proc/{PID}/fd/1', os.O_WRONLY)"),
    Attempt("pid 1's namespaces", "os.readlink('/proc/1/ns/user')", ("EACCES",), instead="os.readlink(f'/proc/{PID}/ns/user')"),
]  # fmt: skip

SOCKETS: list[Attempt] = [
    Attempt("connect", "os.chdir(O); connect('s')", ("ECONNREFUSED",)),
    Attempt("connect by a link made before", "connect('to-socket')", ("ECONNREFUSED",)),
    Attempt("connect by a folder link", "connect('to-out/s')", ("ECONNREFUSED",)),
    Attempt("connect through /proc/self/cwd", "os.chdir(O); connect('/proc/self/cwd/s')", ("ECONNREFUSED",)),
    Attempt("connect through a descriptor", "fd = os.open(O + '/s', os.O_PATH); connect(f'/proc/self/fd/{fd}')", ("ECONNREFUSED",)),
    Attempt("connect in the writable root", "connect('s')", ("ECONNREFUSED",)),
    Attempt("send a datagram", "os.chdir(O); connect('g', socket.SOCK_DGRAM)", ("ECONNREFUSED",)),
    Attempt("turn a pair", "os.chdir(O); a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.connect('g')", ("ECONNREFUSED",)),
    Attempt("hard link a socket", "os.link(O + '/s', W + '/alias'); connect('alias')", ("EXDEV", "EPERM")),
    Attempt("move a socket of the root", "os.rename(W + '/s', W + '/moved'); connect('moved')", ("EBUSY",)),
    Attempt("abstract", "connect(ABSTRACT)", ("ECONNREFUSED",)),
    Attempt("uncover in a namespace", "namespace(); call('umount2', (O + '/s').encode(), 2)", ("EINVAL", "EPERM"), "nobody"),
    Attempt("the host's list of sockets", "assert any('cage' in line for line in open('/proc/net/unix')), 'none'", ("AssertionError: none",)),
    Attempt("sock_diag", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4).close()", ("EAFNOSUPPORT",)),
    Attempt("uevents", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()", ("EAFNOSUPPORT",)),
    Attempt("vsock", "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()", ("EAFNOSUPPORT",), "nobody"),
    Attempt("kernel crypto", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()", ("EAFNOSUPPORT",), "nobody"),
    *(Attempt(f"{path}", f"connect({path!r})", ("ENOENT", "ECONNREFUSED"), "nobody") for path in (
        "/run/dbus/system_bus_socket", "/var/run/docker.sock", "/run/containerd/containerd.sock",
        "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log", "/tmp/.X11-unix/X0",
    )),
]  # fmt: skip

NETWORK: list[Attempt] = [
    Attempt("a service of the host", "socket.create_connection(('127.0.0.1', PORT), 60).close()", ("ECONNREFUSED",)),
    Attempt("by ::ffff:", "socket.create_connection(('::ffff:127.0.0.1', PORT), 60).close()", ("ECONNREFUSED",)),
    Attempt("by 0.0.0.0", "socket.create_connection(('0.0.0.0', PORT), 60).close()", ("ECONNREFUSED",)),
    *(Attempt(f"{kind} to {host}", f"socket.socket({family}, {kind}).connect(({host!r}, 80))", ("ENETUNREACH", "EADDRNOTAVAIL"), "nobody")
      for family, host in (("socket.AF_INET", "192.0.2.1"), ("socket.AF_INET", "169.254.169.254"), ("socket.AF_INET", "10.0.0.1"), ("socket.AF_INET6", "2001:db8::1"))
      for kind in ("socket.SOCK_STREAM", "socket.SOCK_DGRAM")),
    Attempt("a raw socket", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()", ("EPERM",), "root"),
    Attempt("frames", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768).close()", ("EAFNOSUPPORT",), "root"),
    Attempt("frames in a namespace", "call('unshare', 0x10000000 | 0x40000000); socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768).close()", ("EPERM",) if ROOT else ("EAFNOSUPPORT",)),
    Attempt("broadcast", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 6, 1); s.sendto(b'x', ('255.255.255.255', 9))", ("ENETUNREACH",), "nobody"),
    Attempt("multicast", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.251', 5353))", ("ENETUNREACH",), "nobody"),
    Attempt("a route", """
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
body = struct.pack('=BBBBBBBBI', 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack('=HHI', 8, 4, 1)
s.send(struct.pack('=IHHII', 16 + len(body), 24, 0x605, 1, 0) + body)
code = -struct.unpack_from('=i', s.recv(4096), 16)[0]
if code: raise OSError(code, '')
""", ("EPERM",), "nobody"),
    Attempt("another network namespace's addresses", "call('unshare', 0x10000000 | 0x40000000); socket.create_connection(('127.0.0.1', PORT), 60)", ("EPERM",) if ROOT else ("ENETUNREACH",), "nobody"),
    Attempt("mark packets", "socket.socket().setsockopt(socket.SOL_SOCKET, 36, 1)", ("EPERM",), "root"),
]  # fmt: skip

MEMORY: list[Attempt] = [
    Attempt("POSIX", "open(SHM).read()", ("ENOENT",)),
    Attempt("System V", "call('shmget', KEY, 4096, 0)", ("ENOENT",)),
    Attempt("message queues", "call('msgget', KEY, 0)", ("ENOENT",)),
    Attempt("semaphores", "call('semget', KEY, 1, 0)", ("ENOENT",)),
    Attempt("keyrings", "call('syscall', KEYCTL, 0, -3, 0)", ("EPERM",)),
    Attempt("add a key", "call('syscall', ADD_KEY, b'user', b'skep', b'x', 1, -2)", ("EPERM",)),
]
