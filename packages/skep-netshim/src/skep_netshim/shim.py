"""The one program of skep that runs inside the sandbox: hand listeners out, give up every privilege, attest, exec.

    python3 -I -S shim.py --control FD [--config FD] [--proxy FD]     by a backend, told what to do over FD
    python3 -I -S shim.py --unix PATH [--relay] [--port N] -- CMD...  by hand, in a container with one mounted socket
    python3 -I -S shim.py --connect HOST PORT [--port N]              inside: stdin and stdout to a host, by the proxy;
                                                                      what ssh's ProxyCommand is for

It is one file without imports beyond the standard library, since `-I -S` finds nothing else, and it takes `_socket`
and `_signal` where `socket` and `signal` would do, because those two are a third of its start. Trust: the control
descriptor and the configuration come from the host and are believed; everything else here is the boundary that is about
to be judged. The order is

    1. configuration       NUL-terminated `key=value` records, ended by an empty one; over the control descriptor, or
                           from a file of its own, so that nobody waits until it is read
    2. what needs uid 0    mounts made private, device nodes read-only, the AnyIP route, every port of it led to one
                           listener, listeners on the own loopback
    3. privileges          user namespace mapped back to the caller, no capability
    4. hand-over           the listeners go to the proxy (SCM_RIGHTS), answered by `go`; nothing before needs the proxy
    5. limits              rlimits, a second filter, no abstract sockets where the network is the host's
    6. attestation         every line of the promise that can be tried from here is tried; a surprise ends it
    7. exec                of the worker, with descriptors 0, 1, 2 and nothing else

What the control descriptor carries back is lines: `attest NAME VALUE`, `note LAYER TEXT` (something optional is not in
force), `unable TEXT` (the kernel refuses step 2 or 3, and the proxy has not been spoken to), `refused TEXT`, `ready`,
`exec ERRNO` (the worker could not be started). `ready` is answered by `run`: so nobody starts a worker for a caller who
is gone. It closes on exec, and so its end-of-file after `ready` is the news
that the worker runs.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, Dict, List, Optional, Set, Tuple
else:
    import _signal as signal

PROXY_PORT = 3128
BACKLOG = 4096
MAX_FDS = 250  # of the kernel's SCM_MAX_FD, 253
MAX_REPLY = 4096
ACCEPT_AGAIN = 0.01  # seconds after a connection that could not be relayed: a shortage is no reason to spin


class Refused(Exception):
    """The boundary is not what it should be; the worker must not run."""


class Unable(Exception):
    """The kernel refuses what a worker set apart needs; the backend may try without."""


class Config:
    """The records of the control descriptor: `one(key)`, `many(key)`, in the order they came."""

    def __init__(self, data: bytes) -> None:
        self.records: Dict[str, List[bytes]] = {}
        for record in data.split(b"\0"):
            if record:
                key, _, value = record.partition(b"=")
                self.records.setdefault(key.decode(), []).append(value)

    def many(self, key: str) -> List[bytes]:
        return self.records.get(key, [])

    def do_without_transparent_egress(self) -> None:
        """Names are not answered, as their addresses would lead nowhere, and the worker is told what leads programs to
        the proxy's own port. Loopback services of the host stay at their addresses.
        """
        self.records["listen"] = [record for record in self.many("listen") if not record.startswith(b"dns ")]
        self.records["env"] = self.many("env") + self.many("explicit-env")

    def serve_every_port(self) -> None:
        """One listener per family is enough, which `lead_every_port_to` leads to."""
        self.records["listen"] = self.many("listen-every")

    def one(self, key: str) -> Optional[str]:
        values = self.records.get(key)
        return os.fsdecode(values[-1]) if values else None


def read_config(fd: int) -> Config:
    data = bytearray()
    while not data.endswith(b"\0\0"):
        block = os.read(fd, 65536)
        if not block:
            raise Refused("the configuration ended early")
        data += block
    return Config(bytes(data))


# --- listeners ------------------------------------------------------------------------------------------------------


def open_listener(kind: str, address: str, port: int) -> _socket.socket:
    """A listening socket, or for `dns` a bound datagram socket, on the sandbox's own addresses."""
    family = _socket.AF_INET6 if ":" in address else _socket.AF_INET
    sock = _socket.socket(family, _socket.SOCK_DGRAM if kind == "dns" else _socket.SOCK_STREAM)
    if family == _socket.AF_INET6:
        sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
    if kind != "dns":
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    if kind == "every":
        level, option = (41, 75) if family == _socket.AF_INET6 else (0, 19)  # IPV6_TRANSPARENT, IP_TRANSPARENT
        sock.setsockopt(level, option, 1)
    sock.bind((address, port))
    if kind != "dns":
        sock.listen(BACKLOG)
    return sock


def hand_over(proxy: _socket.socket, listeners: List[Tuple[str, str, int, _socket.socket]]) -> None:
    """Every listener is accepted on by the proxy when this returns."""
    while True:
        part, listeners = listeners[:MAX_FDS], listeners[MAX_FDS:]
        names = ", ".join('{"kind": "%s", "address": "%s", "port": %d}' % (k, a, p) for k, a, p, _ in part)
        more = ', "more": true' if listeners else ""
        message = 'SKEP-HANDOFF 1 {"listen": [%s]%s}\n' % (names, more)
        fds = b"".join(sock.fileno().to_bytes(4, sys.byteorder) for _, _, _, sock in part)
        proxy.sendmsg([message.encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
        if not listeners:
            break
    reply = b""
    while not reply.endswith(b"\n") and len(reply) < MAX_REPLY:
        block = proxy.recv(MAX_REPLY)
        if not block:
            break
        reply += block
    if reply != b"go\n":
        raise Refused(
            "the proxy did not take the listeners: " + (reply.decode("ascii", "replace").strip() or "it hung up")
        )


def make_every_address_local() -> None:
    """`connect()` to any address arrives at a listener of this namespace, or is refused at once (AnyIP).

    RTM_NEWROUTE of rtnetlink(7): `local 0.0.0.0/0` and `local ::/0` on lo, in the table local, scope host.
    """
    import _struct as struct

    lo = _socket.if_nametoindex("lo")
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)
    try:
        for family in (_socket.AF_INET, _socket.AF_INET6):
            # rtmsg: family, dst_len, src_len, tos, table=RT_TABLE_LOCAL, protocol=RTPROT_STATIC,
            # scope=RT_SCOPE_HOST, type=RTN_LOCAL
            body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, 255, 4, 254, 2, 0) + struct.pack("=HHI", 8, 4, lo)
            # nlmsghdr: length, RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sequence, port
            sock.send(struct.pack("=IHHII", 16 + len(body), 24, 0x605, 1, 0) + body)
            answer = sock.recv(4096)
            code = -struct.unpack_from("=i", answer, 16)[0]
            if code and not (
                family == _socket.AF_INET6 and code in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT, errno.ENODEV)
            ):
                raise OSError(code, os.strerror(code))
    finally:
        sock.close()


# --- every port -----------------------------------------------------------------------------------------------------

NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES = 12, 10
SYNTHETIC = (
    (_socket.AF_INET, b"\xff\xfe", b"\xc6\x12"),  # 198.18.0.0/15
    (_socket.AF_INET6, b"\xff" * 8, b"\xfd\x5b\x6b\x65\x70\0\0\0"),  # fd5b:6b65:7000::/64
)
"""Family, mask and first bytes of the addresses that stand for names (skep_proxy/synthetic.py)."""


def attribute(kind: int, *parts: bytes) -> bytes:
    """nlattr of netlink(7): its length, its type, what is in it, padded to four bytes."""
    data = b"".join(parts)
    return (4 + len(data)).to_bytes(2, sys.byteorder) + kind.to_bytes(2, sys.byteorder) + data + bytes(-len(data) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | 0x8000, *parts)


def value(kind: int, number: int) -> bytes:
    return attribute(kind, number.to_bytes(4, "big"))


REGISTER = 8  # NFT_REG32_00: everything is loaded there, looked at, and overwritten


def expression(name: bytes, *attributes: bytes) -> bytes:
    return nested(1, attribute(1, name + b"\0"), nested(2, *attributes))


def load(name: bytes, register: int, *attributes: bytes) -> bytes:
    return expression(name, value(register, REGISTER), *attributes)


def compare(operator: int, data: bytes) -> bytes:
    """The rest of the rule is for packets of which this is true: 0 for equal, 1 for not."""
    return expression(b"cmp", value(1, REGISTER), value(2, operator), nested(3, attribute(1, data)))


def field(base: int, offset: int, mask: bytes) -> bytes:
    """Bytes of the network header (1) or the transport header (2), as far as the mask goes."""
    size = len(mask)
    read = load(b"payload", 1, value(2, base), value(3, offset), value(4, size))
    masks = nested(4, attribute(1, mask)), nested(5, attribute(1, bytes(size)))
    return read + expression(b"bitwise", value(1, REGISTER), value(2, REGISTER), value(3, size), *masks)


def rules_of(family: int, mask: bytes, synthetic: bytes, port: int) -> List[bytes]:
    """What is done with a SYN to an address that is not loopback, as nft(8) would write it:

    ip daddr != 198.18.0.0/15 socket transparent 0-1 accept
    tproxy to :PORT
    """
    at, loopback = (16, b"\x7f") if family == _socket.AF_INET else (24, bytes(15) + b"\1")
    syn = (
        load(b"meta", 1, value(2, 15)) + compare(0, bytes((family,)))  # nfproto: the numbers of the families
        + load(b"meta", 1, value(2, 16)) + compare(0, b"\6")  # l4proto: TCP
        + field(2, 13, b"\x17") + compare(0, b"\2")  # of FIN, SYN, RST and ACK, SYN alone
        + field(1, at, b"\xff" * len(loopback)) + compare(1, loopback)
    )  # fmt: skip
    own = field(1, at, mask) + compare(1, synthetic) + load(b"socket", 2, value(1, 0))
    accept = expression(b"immediate", value(1, 0), nested(2, nested(2, value(1, 1))))
    there = expression(b"immediate", value(1, REGISTER), nested(2, attribute(1, port.to_bytes(2, "big"))))
    lead = there + expression(b"tproxy", value(1, family), value(3, REGISTER))
    return [syn + own + accept, syn + lead]


def lead_every_port_to(port: int) -> None:
    """A connection to any port of an address that is not loopback arrives at the listener of kind `every` on `port`,
    and `getsockname` still says where it was meant for. But what somebody inside listens at himself is his: programs
    take the address from which they would reach a distant one for their own. A synthetic address is a name, and
    always the proxy's.

    One batch of nfnetlink, all or nothing: a table, a chain on prerouting, its rules.
    """
    import _struct as struct

    def message(kind: int, flags: int, family: int, body: bytes, resource: int = 0) -> bytes:
        head = struct.pack("=BB", family, 0) + resource.to_bytes(2, "big")  # nfgenmsg
        return struct.pack("=IHHII", 20 + len(body), kind, flags | 1, 0, 0) + head + body

    def new(kind: int, body: bytes, flags: int = 0) -> bytes:
        return message(NFNL_SUBSYS_NFTABLES << 8 | kind, 0x400 | flags, 1, body)  # NLM_F_CREATE, NFPROTO_INET

    table, name = attribute(1, b"skep\0"), b"in\0"
    hook = nested(4, value(1, 0), attribute(2, struct.pack("!i", -150)))  # prerouting, before anything of NAT
    rules = [rule for family in SYNTHETIC for rule in rules_of(*family, port)]
    batch = [
        message(16, 0, 0, b"", NFNL_SUBSYS_NFTABLES),
        new(0, table),
        new(3, table + attribute(3, name) + hook + attribute(7, b"filter\0")),
        *(new(6, table + attribute(2, name) + nested(4, rule), 0x800) for rule in rules[:-1]),
        new(6, table + attribute(2, name) + nested(4, rules[-1]), 0x800 | 4),  # NLM_F_APPEND, and NLM_F_ACK for all
        message(17, 0, 0, b"", NFNL_SUBSYS_NFTABLES),
    ]
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, NETLINK_NETFILTER)
    try:
        sock.settimeout(5)
        sock.send(b"".join(batch))
        code = -struct.unpack_from("=i", sock.recv(65536), 16)[0]
        if code:
            raise OSError(code, os.strerror(code))
    finally:
        sock.close()


# --- privileges -----------------------------------------------------------------------------------------------------

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_CAPBSET_DROP, PR_SET_SECUREBITS = 24, 28
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
PR_SET_NO_NEW_PRIVS = 38
SECURE_NOROOT_LOCKED = 0b11 | 0b1100  # SECBIT_NOROOT and SECBIT_NO_SETUID_FIXUP, each with its lock: capabilities(7)
CLONE_NEWUSER = 0x10000000
LINUX_CAPABILITY_VERSION_3 = 0x20080522


FUNCTIONS: Dict[str, Any] = {}


def c_function(name: str) -> Any:
    """A function of the C library that takes and returns int, and keeps errno. By `_ctypes`: the `ctypes` module
    around it would cost a quarter of this program's time.
    """
    if name not in FUNCTIONS:
        import _ctypes

        class Int(_ctypes._SimpleCData):  # type: ignore[misc, name-defined]
            _type_ = "i"

        class Function(_ctypes.CFuncPtr):  # type: ignore[misc, name-defined]
            _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
            _restype_ = Int

        FUNCTIONS[name] = Function(_ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), name))  # type: ignore[arg-type]
    return FUNCTIONS[name]


def checked(result: int, what: str) -> None:
    import _ctypes

    if result < 0:
        code = _ctypes.get_errno()
        raise OSError(code, "%s: %s" % (what, os.strerror(code)))


MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
KEPT_FLAGS = 2 | 4 | 8  # nosuid, nodev, noexec: the same numbers in statvfs(3) and mount(2)


def make_mounts_private() -> None:
    """A file system that the host mounts from now on does not appear inside, where it would be writable."""
    checked(c_function("mount")(None, b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")


NOTHING, VOID = b"/run/skep/nothing", b"/run/skep/void"


def cover(records: List[bytes]) -> None:
    """Mounts that bwrap was not asked for, as it takes long over each or the place may be gone: each `KIND PATH`."""
    mount, sources = c_function("mount"), {b"file": NOTHING, b"socket": NOTHING, b"dir": VOID}
    for record in records:
        kind, _, path = record.partition(b" ")
        if kind == b"pin":
            source, flags = path, MS_BIND | MS_REC
        else:
            source, flags = sources.get(kind, path), MS_BIND
        try:
            checked(mount(source, path, None, flags, None), os.fsdecode(path))
            if kind in (b"keep", b"knob"):
                flags = os.statvfs(path).f_flag & KEPT_FLAGS | MS_REMOUNT | MS_BIND | MS_RDONLY
                checked(mount(None, path, None, flags, None), os.fsdecode(path))
        except OSError as error:
            # Gone, replaced by a folder, or in a folder that is closed to us as it is to the worker.
            tolerated = kind == b"socket" and error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
            if not tolerated and not (kind == b"knob" and error.errno == errno.ENOENT):
                raise Refused("%s cannot be covered: %s" % (os.fsdecode(path), os.strerror(error.errno or 0))) from None
            folder = openable(path) if error.errno == errno.EACCES else None
            if folder is not None and mount(VOID, folder, None, MS_BIND, None) != 0:
                raise Refused("the folder %s of a socket cannot be covered" % os.fsdecode(folder)) from None


def openable(path: bytes) -> Optional[bytes]:
    """The folder on the way that closes the path to us, if it is ours to open; None for one of somebody else's."""
    folder = os.path.dirname(path)
    while True:
        try:
            info = os.stat(folder)
        except PermissionError:
            folder = os.path.dirname(folder)
        except OSError:
            return None
        else:
            return folder if info.st_uid == os.getuid() and can_be_written(folder) else None


def protect_device(path: str) -> None:
    """The node works as before, and its mode and owner, which are the host's, cannot be changed."""
    flags = os.statvfs(path).f_flag & KEPT_FLAGS | MS_REMOUNT | MS_BIND | MS_RDONLY
    try:
        checked(c_function("mount")(None, os.fsencode(path), None, flags, None), path)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise Refused("%s was not put there by the sandbox" % path) from None
        raise


def map_back_to(uid: int, gid: int) -> None:
    """The process is `uid` again, in a user namespace of its own that owns nothing of the network namespace."""
    checked(c_function("unshare")(CLONE_NEWUSER), "unshare")
    for name, line in (("setgroups", "deny"), ("uid_map", "%d 0 1" % uid), ("gid_map", "%d 0 1" % gid)):
        fd = os.open("/proc/self/" + name, os.O_WRONLY)
        try:
            os.write(fd, line.encode())
        finally:
            os.close(fd)


def forbid_mounts() -> None:
    """Nobody in this user namespace gets a mount namespace, and so none can mount anything (namespaces(7))."""
    fd = os.open("/proc/sys/user/max_mnt_namespaces", os.O_WRONLY)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def drop_capabilities(root: bool) -> None:
    """No capability is left in any set, and for a root caller none comes back with exec or can be planted in a file."""
    import _struct as struct

    prctl = c_function("prctl")
    checked(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if root:
        checked(prctl(PR_SET_SECUREBITS, SECURE_NOROOT_LOCKED, 0, 0, 0), "securebits")
    for cap in range(64):
        if prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0:
            break
    checked(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "ambient capabilities")
    header = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    checked(c_function("capset")(header, b"\0" * 24), "capset")


def add_filter(program: bytes) -> None:
    """One more seccomp filter, on top of those already there. `program` is an array of struct sock_filter."""
    import _ctypes
    import _struct as struct

    class Byte(_ctypes._SimpleCData):  # type: ignore[misc, name-defined]
        _type_ = "c"

    code = (Byte * len(program))()  # type: ignore[operator]
    code.raw = program
    fprog = struct.pack("@HP", len(program) // 8, _ctypes.addressof(code))
    checked(c_function("prctl")(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog, 0, 0), "seccomp")


SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_RESTRICT_SELF = 444, 446
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1


def scope_abstract_sockets() -> None:
    """Abstract Unix sockets of the host cannot be connected to, although the network namespace is the host's.

    landlock(7), ABI 6; raises OSError where the kernel has less.
    """
    import _struct as struct

    syscall = c_function("syscall")
    attributes = struct.pack("=QQQ", 0, 0, LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)
    ruleset = syscall(SYS_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    checked(ruleset, "landlock")
    try:
        checked(syscall(SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def set_limits(limits: List[bytes]) -> None:
    """`NAME NUMBER` records: soft and hard limit, as far as the hard limit there is allows."""
    if not limits:
        return
    import resource

    for record in limits:
        name, _, value = record.decode().partition(" ")
        which = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(which)[1]
        wanted = int(value)
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(which, (wanted, wanted))


# --- attestation ----------------------------------------------------------------------------------------------------


def status_fields() -> Dict[str, str]:
    with open("/proc/self/status") as status:
        return dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)


def attest_processes(config: Config) -> str:
    if os.readlink("/proc/self") != str(os.getpid()):
        raise Refused("/proc belongs to another pid namespace")
    others = [
        int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid(), os.getppid())
    ]
    if others:
        raise Refused("processes of others are visible: %s" % others[:5])
    return "only its own"


def attest_namespaces(config: Config) -> str:
    """Each namespace the boundary unshares is another one than the host's."""
    own: List[str] = []
    for record in config.many("host-ns"):
        name, _, host = record.decode().partition(" ")
        if os.readlink("/proc/self/ns/" + name) == host:
            raise Refused("the %s namespace is the host's" % name)
        own.append(name)
    return " ".join(own)


def attest_privileges(config: Config) -> str:
    fields = status_fields()
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        # Without a namespace of its own an ordinary worker keeps a bounding set, of capabilities it cannot gain.
        harmless = name == "CapBnd" and not config.one("apart") and config.one("uid") != "0"
        if int(fields[name], 16) != 0 and not harmless:
            raise Refused("%s is %s" % (name, fields[name]))
    if fields["NoNewPrivs"] != "1":
        raise Refused("new privileges can be gained")
    if config.one("uid") not in (None, fields["Uid"].split()[0]):
        raise Refused("the uid is %s" % fields["Uid"])
    return "none"


NETLINK_SOCK_DIAG = 4  # which the filter refuses, and every kernel has or calls EPROTONOSUPPORT


def attest_seccomp(config: Config) -> str:
    fields = status_fields()
    if fields["Seccomp"] != "2":
        raise Refused("no seccomp filter is in force")
    for protocol, what in (
        (NETLINK_SOCK_DIAG, "the seccomp filter is another than ours"),
        (NETLINK_NETFILTER, "the filter that lets the shim set up nf_tables is still the only one"),
    ):
        try:
            _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, protocol).close()
            code: Optional[int] = 0
        except OSError as error:
            code = error.errno
        if code != errno.EAFNOSUPPORT:
            raise Refused(what)
    if config.one("strict"):
        try:
            _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM).close()
        except OSError:
            pass
        else:
            raise Refused("the strict filter is not in force")
    if is_root(config) and c_function("unshare")(CLONE_NEWUSER) == 0:
        raise Refused("root could make a user namespace")
    return fields.get("Seccomp_filters", "1")


def attest_writes(config: Config) -> str:
    """A file cannot be made where the boundary says read-only, and the kernel says why."""
    tried = 0
    for folder in config.many("read-only"):
        path = folder + (b"" if folder.endswith(b"/") else b"/") + b".skep-attestation"
        try:
            if not os.statvfs(folder).f_flag & os.ST_RDONLY:
                raise Refused("%s is not read-only" % os.fsdecode(folder))
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR):
                raise
            tried += 1
        else:
            os.close(fd)
            os.unlink(path)
            raise Refused("%s could be written" % os.fsdecode(folder))
    if not tried:
        raise Refused("nothing read-only was there to be tried")
    return str(tried)


def attest_hidden(config: Config) -> str:
    paths = config.many("hidden")
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENXIO, errno.ELOOP, errno.ENOTDIR):
                raise
        else:
            raise Refused("%s can be read" % os.fsdecode(path))
        if can_be_written(path):
            raise Refused("%s could be opened up by its owner" % os.fsdecode(path))
    return str(len(paths))


def attest_network(config: Config) -> str:
    """No packet leaves: to documentation addresses (RFC 5737, RFC 3849) there is no route, or one within this host."""
    if config.one("network") == "open":
        return "open"
    for family, address in ((_socket.AF_INET, "192.0.2.1"), (_socket.AF_INET6, "2001:db8::1")):
        try:
            sock = _socket.socket(family, _socket.SOCK_DGRAM)
        except OSError:
            continue
        try:
            sock.connect((address, 9))
            if sock.getsockname()[0] not in (address, "127.0.0.1", "::1"):
                raise Refused("there is a route out of the sandbox")
        except OSError as error:
            if error.errno not in (
                errno.ENETUNREACH,
                errno.EHOSTUNREACH,
                errno.EADDRNOTAVAIL,
                errno.EACCES,
                errno.EPERM,
            ):
                raise
        finally:
            sock.close()
    return "nothing leaves"


def attest_sockets(config: Config) -> str:
    """Nobody of the host answers at the sockets it has."""
    paths = config.many("socket")
    for path in paths:
        try:
            sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        except OSError:
            return "none can be made"
        try:
            sock.setblocking(False)
            sock.connect(path)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EPROTOTYPE):
                raise Refused("the host's socket %s can be reached" % os.fsdecode(path)) from None
            if error.errno == errno.EACCES and openable(path):
                raise Refused("the folder of the host's socket %s could be opened" % os.fsdecode(path)) from None
        else:
            raise Refused("the host's socket %s answers" % os.fsdecode(path))
        finally:
            sock.close()
    return str(len(paths))


USUAL_DEVICES = frozenset(b"console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split())


def attest_devices(config: Config) -> str:
    """/dev, its terminals and its shared memory are the sandbox's own, as are the folders for temporary files, and /dev
    holds the minimum and what was let in.
    """
    numbers = config.many("host-dev")
    for folder in (b"/dev", b"/dev/pts", b"/dev/shm", *config.many("own")):
        if str(os.stat(folder).st_dev).encode() in numbers:
            raise Refused("%s of the host is there" % os.fsdecode(folder))
    let_in = [path.split(b"/")[2] for path in config.many("let-in") if path.startswith(b"/dev/")]
    for name in os.listdir(b"/dev"):
        if name not in USUAL_DEVICES and name not in let_in:
            raise Refused("/dev/%s of the host is there" % os.fsdecode(name))
    return "minimal"


KERNEL_FILES = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger")


def attest_kernel(config: Config) -> str:
    """The host's kernel cannot be told anything through files."""
    for path in KERNEL_FILES:
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
                raise
        else:
            raise Refused("%s can be written" % path)
    for record in config.many("device"):
        if not os.statvfs(record).f_flag & os.ST_RDONLY:
            raise Refused("the mode of %s can be changed" % os.fsdecode(record))
    return "read-only"


def attest_apart(config: Config) -> str:
    """The sandbox's own pid 1 cannot be traced."""
    if not config.one("apart"):
        return "no"
    try:
        os.close(os.open("/proc/1/mem", os.O_RDWR))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
    else:
        raise Refused("the sandbox's pid 1 can be traced")
    return "yes"


def attest_mounts(config: Config) -> str:
    """No mount can be written to but the roots and what is the sandbox's own, what leads to a protected or hidden path
    cannot be moved, and no mount of the host arrives later.
    """
    apart = config.one("apart")
    writable = [b"/proc", b"/dev", *config.many("writable")]
    points: Set[bytes] = set()
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            fields = line.partition(b" - ")[0].split(b" ")
            point = fields[4] if b"\\" not in fields[4] else unescape(fields[4])
            points.add(point)
            if apart and any(field.startswith((b"master:", b"shared:")) for field in fields[6:]):
                raise Refused("mounts of the host would appear at %s" % os.fsdecode(point))
            expected = not fields[5].startswith(b"rw") or any(below(point, path) for path in writable)
            if not expected and can_be_written(point):
                raise Refused("%s is a mount that can be written to" % os.fsdecode(point))
    for path in config.many("pin"):
        if path not in points:
            raise Refused("%s can be moved away, and what is protected or hidden in it" % os.fsdecode(path))
    return str(len(points))


def unescape(text: bytes) -> bytes:
    """Octal escapes of the kernel's seq_file undone."""
    first, *rest = text.split(b"\\")
    return first + b"".join(bytes((int(part[:3], 8),)) + part[3:] for part in rest)


def below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")


def can_be_written(path: bytes) -> bool:
    """False for a mount that another covers, or in a folder that is closed to us: bwrap leaves it as it is."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except OSError:
        return False


def attest_standard(config: Config) -> None:
    """Each of the worker's three descriptors is a terminal, an anonymous pipe, or this sandbox's own /dev/null."""
    import stat

    modes_matter = is_root(config) and config.one("apart")
    for fd in (0, 1, int(config.one("stderr") or 2)):
        mode = os.fstat(fd).st_mode
        pipe = stat.S_ISFIFO(mode) and os.readlink("/proc/self/fd/%d" % fd).startswith("pipe:")
        own = stat.S_ISCHR(mode) and (os.isatty(fd) or os.fstatvfs(fd).f_flag & os.ST_RDONLY or not modes_matter)
        if not pipe and not own:
            raise Refused("descriptor %d is a file of the host" % fd)


def is_root(config: Config) -> bool:
    return config.one("uid") == "0"


def attest_descriptors(config: Config) -> str:
    """Only 0, 1, 2 and what closes on exec is open."""
    attest_standard(config)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and os.get_inheritable(fd):
                raise Refused("descriptor %d would reach the worker" % fd)
        except OSError:
            continue  # the one that listed the folder
    return "0 1 2"


ATTESTATION = (
    ("processes", attest_processes),
    ("namespaces", attest_namespaces),
    ("capabilities", attest_privileges),
    ("seccomp", attest_seccomp),
    ("writes", attest_writes),
    ("hidden", attest_hidden),
    ("mounts", attest_mounts),
    ("sockets", attest_sockets),
    ("network", attest_network),
    ("devices", attest_devices),
    ("kernel", attest_kernel),
    ("apart", attest_apart),
    ("descriptors", attest_descriptors),
)


# --- the two ways to be started --------------------------------------------------------------------------------


def open_listeners(config: Config, say: Any) -> List[Tuple[str, str, int, _socket.socket]]:
    """The listeners that could be opened. `proxy` must; a transparent one that cannot is noted."""
    listeners: List[Tuple[str, str, int, _socket.socket]] = []
    for record in config.many("listen"):
        kind, address, port = record.decode().split(" ")
        try:
            sock = open_listener(kind, address, int(port))
            listeners.append(("tcp" if kind == "every" else kind, address, int(port), sock))
        except OSError as error:
            if kind == "proxy":
                raise
            say("note transparent no %s listener on %s port %s: %s" % (kind, address, port, error.strerror))
    return listeners


def set_every_port(config: Config, port: int, say: Any) -> None:
    try:
        lead_every_port_to(port)
        config.serve_every_port()
    except OSError as error:
        named = [
            record.split(b" ")[2].decode() for record in config.many("listen") if record.startswith(b"tcp 0.0.0.0 ")
        ]
        say("note every-port the kernel refused nf_tables (%s): only %s" % (error.strerror, ", ".join(named) or "none"))


def set_apart(config: Config, listening: bool, say: Any) -> List[Tuple[str, str, int, _socket.socket]]:
    """What uid 0 of the sandbox's namespace is needed for is done, and the process is the caller again. Returns the
    listeners. Raises Unable.
    """
    apart = config.one("apart") is not None
    try:
        if apart:
            make_mounts_private()
            cover(config.many("cover"))
            for device in config.many("device"):
                protect_device(os.fsdecode(device))
        if config.one("transparent") is not None:
            try:
                make_every_address_local()
                every = config.one("every-port")
                if every is not None:
                    set_every_port(config, int(every), say)
            except OSError as error:
                config.do_without_transparent_egress()
                for layer in ("transparent", "every-port"):
                    say("note %s the kernel refused the route: %s" % (layer, error.strerror))
        listeners = open_listeners(config, say) if listening else []
        if apart:
            map_back_to(int(config.one("uid") or 0), int(config.one("gid") or 0))
            if config.one("no-mounts"):
                try:
                    forbid_mounts()
                except OSError as error:
                    say("note memory what is in file systems that a worker mounts itself is not counted: %s" % error)
            drop_capabilities(is_root(config))
    except OSError as error:
        if apart:
            raise Unable(str(error)) from None
        raise
    return listeners


def open_nulls(config: Config) -> None:
    """Descriptors the worker has as /dev/null are this sandbox's own, whose mode cannot be changed."""
    for number in config.many("null"):
        fd = os.open("/dev/null", os.O_RDWR)
        os.dup2(fd, int(number))
        if int(number) > 2:
            os.set_inheritable(int(number), False)
        os.close(fd)


def prepare(config: Config, proxy_fd: Optional[int], say: Any) -> None:
    """Everything up to the exec is done and has been looked at. Raises Refused or Unable."""
    # Before anything is made of them: afterwards the user namespace is our own in any case.
    attest_processes(config)
    attest_namespaces(config)
    listeners = set_apart(config, proxy_fd is not None, say)
    if proxy_fd is not None:
        proxy = _socket.socket(fileno=proxy_fd)
        hand_over(proxy, listeners)
        proxy.close()
        for _, _, _, sock in listeners:
            sock.close()
    open_nulls(config)
    if config.one("network") == "open":
        try:
            scope_abstract_sockets()
        except OSError as error:
            say("note sockets abstract sockets of the host can be reached, as its network can: %s" % error)
    set_limits(config.many("rlimit"))
    for program in config.many("filter"):
        add_filter(bytes.fromhex(program.decode()))
    for name, attest in ATTESTATION:
        say("attest %s %s" % (name, attest(config)))
    try:
        os.chdir(config.one("cwd") or "/")
    except OSError as error:
        raise Refused("cannot enter %s: %s" % (config.one("cwd"), error.strerror)) from None


def controlled(control_fd: int, config_fd: int, proxy_fd: Optional[int]) -> None:
    os.set_inheritable(control_fd, False)
    if proxy_fd is not None:
        os.set_inheritable(proxy_fd, False)

    def say(line: str) -> None:
        os.write(control_fd, (line.replace("\n", " ") + "\n").encode("utf-8", "surrogateescape"))

    try:
        config = read_config(config_fd)
        if config_fd != control_fd:
            os.close(config_fd)
        stderr = config.one("stderr")
        if stderr is not None:
            os.set_inheritable(int(stderr), False)
        prepare(config, proxy_fd, say)
    except Unable as unable:
        say("unable %s" % unable)
        os._exit(125)
    except Refused as refusal:
        say("refused %s" % refusal)
        os._exit(125)
    except OSError as error:
        say("refused %s%s" % ("%s: " % os.fsdecode(error.filename) if error.filename else "", error.strerror or error))
        os._exit(125)
    except BaseException as error:
        say("refused %s: %s" % (type(error).__name__, error))
        os._exit(125)
    say("ready")
    if os.read(control_fd, 16) != b"run\n":
        os._exit(125)
    if stderr is not None:
        os.dup2(int(stderr), 2)
        os.close(int(stderr))
    env = {name: value for name, _, value in (record.partition(b"=") for record in config.many("env"))}
    run(config.many("argv"), env, {int(n) for n in config.many("ignore")}, say)


def run(argv: List[bytes], env: Dict[bytes, bytes], ignored: Any, say: Any) -> None:
    """Become the worker. Signals are as the caller had them; an error is told as `exec ERRNO`."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    worst = errno.ENOENT
    for path in candidates(argv[0], env.get(b"PATH", os.defpath.encode())):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                try:
                    os.execve(b"/bin/sh", [b"sh", path, *argv[1:]], env)
                except OSError as again:
                    error = again
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                worst = error.errno or worst
    say("exec %d" % worst)
    os._exit(127 if worst == errno.ENOENT else 126)


def candidates(name: bytes, path: bytes) -> List[bytes]:
    if not name:  # `execve` of Python raises for an argv that begins so
        return []
    if b"/" in name:
        return [name]
    return [os.path.join(folder or b".", name) for folder in path.split(b":")]


def from_container(path: str, command: List[str], port: int, relay: bool) -> None:
    """The command runs with the proxy on 127.0.0.1:`port`; this process waits, as the listener lives as long as it.

    The boundary is the container's; what is judged here is only that no packet leaves.
    """
    attest_network(Config(b""))
    listener = open_listener("proxy", "127.0.0.1", port)
    if not relay:
        proxy = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        proxy.connect(path)
        hand_over(proxy, [("proxy", "127.0.0.1", port, listener)])
    env = dict(os.environb)
    for name in (b"HTTP_PROXY", b"HTTPS_PROXY", b"ALL_PROXY"):
        env[name] = env[name.lower()] = b"http://127.0.0.1:%d" % port
    env[b"NO_PROXY"] = env[b"no_proxy"] = b"localhost,127.0.0.1,::1"
    env[b"NODE_USE_ENV_PROXY"] = b"1"
    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)  # until there is somebody to pass them on to
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)

        def tell(line: str) -> None:
            os.write(2, ("shim: %s: %s\n" % (command[0], os.strerror(int(line.split()[1])))).encode())

        run([os.fsencode(word) for word in command], env, (), tell)
    for number in forwarded:
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    if relay:
        import threading

        threading.Thread(target=accept_for_ever, args=(listener, path), daemon=True).start()
    status = os.waitpid(child, 0)[1]
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def accept_for_ever(listener: _socket.socket, path: str) -> None:
    """Each connection to `listener` is joined to one of its own to the proxy behind `path`."""
    import socket
    import threading
    import time

    server = socket.socket(fileno=listener.detach())
    while True:
        ends: List[_socket.socket] = []
        try:
            ends.append(server.accept()[0])
            ends.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            ends[1].connect(path)
            threads = [threading.Thread(target=pump, args=pair, daemon=True) for pair in (ends, ends[::-1])]
            for thread in threads:
                thread.start()
        except (OSError, RuntimeError):  # no descriptor or thread left for this one, or the proxy is gone
            for sock in ends:
                try:
                    sock.shutdown(_socket.SHUT_RDWR)
                except OSError:
                    pass
                sock.close()
            time.sleep(ACCEPT_AGAIN)


def pump(source: _socket.socket, sink: _socket.socket) -> None:
    """Bytes from one to the other until end-of-file, which is passed on as a half-close."""
    try:
        while True:
            block = source.recv(65536)
            if not block:
                break
            sink.sendall(block)
        sink.shutdown(_socket.SHUT_WR)
    except OSError:
        for sock in (source, sink):
            try:
                sock.shutdown(_socket.SHUT_RDWR)
            except OSError:
                pass


def connect_through(host: str, port: int, proxy_port: int) -> None:
    """stdin goes to the host and what it says to stdout, until both have ended. Raises Refused."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    sock.connect(("127.0.0.1", proxy_port))
    where = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
    sock.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (where, where)).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        block = sock.recv(4096)
        if not block or len(head) > MAX_REPLY:
            raise Refused("the proxy hung up")
        head += block
    head, _, rest = head.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        while len(rest) < MAX_REPLY:
            block = sock.recv(4096)
            if not block:
                break
            rest += block
        raise Refused(rest.decode("ascii", "replace").strip() or "the proxy refused")
    write_all(1, rest)
    join_standard(sock)


def join_standard(sock: _socket.socket) -> None:
    """Until the host has said everything. Each way on a thread of its own: none waits for the other."""
    import threading

    def send() -> None:
        try:
            while True:
                block = os.read(0, 65536)
                if not block:
                    break
                sock.sendall(block)
            sock.shutdown(_socket.SHUT_WR)
        except OSError:
            pass

    threading.Thread(target=send, daemon=True).start()
    while True:
        try:
            block = sock.recv(65536)
        except OSError:
            break
        if not block:
            break
        write_all(1, block)
    os._exit(0)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def main() -> None:
    args = sys.argv[1:]
    command: List[str] = []
    if "--" in args:
        cut = args.index("--")
        args, command = args[:cut], args[cut + 1 :]
    options: Dict[str, str] = {}
    while args:
        name = args.pop(0)
        if name == "--relay":
            options[name] = "yes"
        elif name == "--connect" and len(args) > 1 and args[1].isdigit():
            options[name], options["port of it"] = args.pop(0), args.pop(0)
        elif name in ("--control", "--config", "--proxy", "--unix", "--port") and args:
            options[name] = args.pop(0)
        else:
            sys.exit("shim: %s: not an option; see the text at the top of this file" % name)
    if "--control" in options:
        proxy = options.get("--proxy")
        control = int(options["--control"])
        controlled(control, int(options.get("--config", control)), int(proxy) if proxy else None)
    elif "--connect" in options:
        try:
            connect_through(options["--connect"], int(options["port of it"]), int(options.get("--port", PROXY_PORT)))
        except (Refused, OSError) as error:
            sys.stderr.write("%s\n" % error)
            sys.exit(1)
    elif "--unix" in options and command:
        try:
            from_container(options["--unix"], command, int(options.get("--port", PROXY_PORT)), "--relay" in options)
        except (Refused, OSError, ValueError) as error:
            sys.stderr.write("shim: %s; the command was not run\n" % error)
            sys.exit(125)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
