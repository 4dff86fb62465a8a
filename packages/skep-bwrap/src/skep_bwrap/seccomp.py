"""The system calls a worker does not get, as a classic BPF program for seccomp(2).

Rules of the filter, in the order of its code:

1. another architecture than the one it was built for is killed (its numbers would mean other calls), and x32 is
   refused with ENOSYS;
2. a call of `DENIED` fails with EPERM;
3. `ioctl` with TIOCSTI or TIOCLINUX fails with EPERM, compared on the low 32 bits, as the kernel does: a worker on
   the user's terminal cannot type into it, and so job control needs no session of its own;
4. `fcntl` with F_SETLEASE fails with EPERM: a lease on a file of the user's that can only be read makes every program
   of the host that opens it wait, for 45 seconds by default;
5. `socket` is for AF_UNIX, AF_INET, AF_INET6 and for AF_NETLINK with NETLINK_ROUTE; any other family fails with
   EAFNOSUPPORT;
6. everything else is allowed.

The shim leads every port to one listener by nf_tables, and so starts under a filter that opens NETLINK_NETFILTER as
well; it adds the one above when that is done. Two more programs may be added by the shim at the same time. Root of
the host gets no new user namespace: there it had every capability over namespaces of its own, with the rights of the
host's uid 0 on what it mounted, the host's cgroups among it. And `strict` refuses AF_UNIX, every new namespace, and
mounts. Filters stack, and the strictest answer wins (seccomp(2)).

A launch does not assemble them anew: `filters.py` has them ready, and is what `python -m skep_bwrap.seccomp` prints.
"""

from __future__ import annotations

import sys

from skep_policy.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final


# linux/bpf_common.h, linux/seccomp.h, asm-generic/errno*.h
LD_W_ABS: Final = 0x20
JEQ: Final = 0x15
JGE: Final = 0x35
JSET: Final = 0x45
AND: Final = 0x54
RET: Final = 0x06
ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
ERRNO: Final = 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97

# offsets in struct seccomp_data; both architectures are little-endian, so the low half of an argument comes first
NR: Final = 0
ARCH: Final = 4


def low_half(argument: int) -> int:
    """Offset of the low 32 bits of an argument."""
    return 16 + 8 * argument


TIOCSTI: Final = 0x5412
TIOCLINUX: Final = 0x541C
F_SETLEASE: Final = 1024
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE, NETLINK_NETFILTER = 0, 12
SOCK_DGRAM: Final = 2
SOCK_TYPE_MASK: Final = 0xF
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEW_ANY: Final = 0x7E020080  # NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET and NEWTIME
X32_BIT: Final = 0x40000000

DENIED: Final = (
    "add_key",
    "bpf",
    "delete_module",
    "finit_module",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "open_by_handle_at",
    "perf_event_open",
    "request_key",
    "syslog",
    "userfaultfd",
)
"""Ways into the kernel, around the other filters or around mounts (file handles), or out to what namespaces do not
separate (keyrings, the kernel's log).
"""

DENIED_STRICT: Final = (
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setns",
    "umount2",
)


class Arch(Value):
    """A machine: its AUDIT_ARCH value and its numbers for the calls named here (arch/*/tbl, asm-generic/unistd.h)."""

    audit: int
    numbers: dict[str, int]
    x32: bool = False


SHARED: Final = {
    "clone3": 435,
    "fsconfig": 431,
    "fsmount": 432,
    "fsopen": 430,
    "fspick": 433,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "io_uring_setup": 425,
    "mount_setattr": 442,
    "move_mount": 429,
    "open_tree": 428,
}

ARCHES: Final = {
    "x86_64": Arch(
        audit=0xC000003E,
        x32=True,
        numbers={
            **SHARED,
            "add_key": 248,
            "bpf": 321,
            "clone": 56,
            "delete_module": 176,
            "fcntl": 72,
            "finit_module": 313,
            "init_module": 175,
            "ioctl": 16,
            "kexec_file_load": 320,
            "kexec_load": 246,
            "keyctl": 250,
            "mount": 165,
            "open_by_handle_at": 304,
            "perf_event_open": 298,
            "pivot_root": 155,
            "request_key": 249,
            "setns": 308,
            "socket": 41,
            "socketpair": 53,
            "syslog": 103,
            "umount2": 166,
            "unshare": 272,
            "userfaultfd": 323,
        },
    ),
    "aarch64": Arch(
        audit=0xC00000B7,
        numbers={
            **SHARED,
            "add_key": 217,
            "bpf": 280,
            "clone": 220,
            "delete_module": 106,
            "fcntl": 25,
            "finit_module": 273,
            "init_module": 105,
            "ioctl": 29,
            "kexec_file_load": 294,
            "kexec_load": 104,
            "keyctl": 219,
            "mount": 40,
            "open_by_handle_at": 265,
            "perf_event_open": 241,
            "pivot_root": 41,
            "request_key": 218,
            "setns": 268,
            "socket": 198,
            "socketpair": 199,
            "syslog": 116,
            "umount2": 39,
            "unshare": 97,
            "userfaultfd": 282,
        },
    ),
}


class Jump(Value):
    """`if A <op> value: goto yes`, otherwise the next instruction."""

    op: int
    value: int
    yes: str


class Mark(Value):
    """The place a jump names."""

    name: str


class Plain(Value):
    """A load, an arithmetic step or a return."""

    op: int
    value: int


Line = Jump | Mark | Plain


def assemble(lines: Iterable[Line]) -> bytes:
    """The program as an array of struct sock_filter. Jumps go forward, at most 255 instructions.

    Raises ValueError for a jump that is backward, too far, or to a place that is not there.
    """
    lines = list(lines)
    places: dict[str, int] = {}
    at = 0
    for line in lines:
        if isinstance(line, Mark):
            places[line.name] = at
        else:
            at += 1
    program = bytearray()
    for at, line in enumerate(line for line in lines if not isinstance(line, Mark)):
        match line:
            case Plain(op, value):
                program += _instruction(op, 0, value)
            case Jump(op, value, yes):
                distance = places.get(yes, -1) - at - 1
                if not 0 <= distance <= 255:
                    raise ValueError(f"jump from {at} to {yes!r} is not 0 to 255 instructions forward")
                program += _instruction(op, distance, value)
    return bytes(program)


def _instruction(op: int, yes: int, value: int) -> bytes:
    """A struct sock_filter (linux/filter.h)."""
    return op.to_bytes(2, sys.byteorder) + bytes((yes, 0)) + value.to_bytes(4, sys.byteorder)


def load(offset: int) -> Plain:
    return Plain(LD_W_ABS, offset)


def _prologue(arch: Arch) -> list[Line]:
    lines: list[Line] = [load(ARCH), Jump(JEQ, arch.audit, "ours"), Plain(RET, KILL_PROCESS), Mark("ours"), load(NR)]
    if arch.x32:
        lines.append(Jump(JGE, X32_BIT, "enosys"))
    return lines


def _epilogue() -> list[Line]:
    lines: list[Line] = [Mark("allow"), Plain(RET, ALLOW)]
    for name, code in (("eperm", EPERM), ("enosys", ENOSYS), ("eafnosupport", EAFNOSUPPORT)):
        lines += [Mark(name), Plain(RET, ERRNO | code)]
    return lines


def base_filter(arch: Arch, *, netfilter: bool = False) -> bytes:
    """The filter that is always in force. With `netfilter` it is that of the shim, which needs NETLINK_NETFILTER before
    it adds the other one.
    """
    number = arch.numbers
    return assemble(
        [
            *_prologue(arch),
            *(Jump(JEQ, number[name], "eperm") for name in DENIED),
            Jump(JEQ, number["ioctl"], "ioctl"),
            Jump(JEQ, number["fcntl"], "fcntl"),
            Jump(JEQ, number["socket"], "socket"),
            Plain(RET, ALLOW),
            Mark("ioctl"),
            load(low_half(1)),
            Jump(JEQ, TIOCSTI, "eperm"),
            Jump(JEQ, TIOCLINUX, "eperm"),
            Plain(RET, ALLOW),
            Mark("fcntl"),
            load(low_half(1)),
            Jump(JEQ, F_SETLEASE, "eperm"),
            Plain(RET, ALLOW),
            Mark("socket"),
            load(low_half(0)),
            *(Jump(JEQ, family, "allow") for family in (AF_UNIX, AF_INET, AF_INET6)),
            Jump(JEQ, AF_NETLINK, "netlink"),
            Plain(RET, ERRNO | EAFNOSUPPORT),
            Mark("netlink"),
            load(low_half(2)),
            *(Jump(JEQ, protocol, "allow") for protocol in (NETLINK_ROUTE, *[NETLINK_NETFILTER] * netfilter)),
            Plain(RET, ERRNO | EAFNOSUPPORT),
            *_epilogue(),
        ]
    )


def root_filter(arch: Arch) -> bytes:
    """What root of the host does not get in addition: a user namespace."""
    number = arch.numbers
    return assemble(
        [
            *_prologue(arch),
            Jump(JEQ, number["clone3"], "enosys"),  # its flags are in memory, where no filter looks; libc uses clone
            Jump(JEQ, number["clone"], "flags"),
            Jump(JEQ, number["unshare"], "flags"),
            Plain(RET, ALLOW),
            Mark("flags"),
            load(low_half(0)),
            Jump(JSET, CLONE_NEWUSER, "eperm"),
            Plain(RET, ALLOW),
            *_epilogue(),
        ]
    )


def strict_filter(arch: Arch) -> bytes:
    """What `--strict` adds. A datagram pair is refused with AF_UNIX, since it can be connected again to a path."""
    number = arch.numbers
    return assemble(
        [
            *_prologue(arch),
            *(Jump(JEQ, number[name], "eperm") for name in DENIED_STRICT),
            Jump(JEQ, number["clone3"], "enosys"),
            Jump(JEQ, number["clone"], "flags"),
            Jump(JEQ, number["unshare"], "flags"),
            Jump(JEQ, number["socket"], "socket"),
            Jump(JEQ, number["socketpair"], "socketpair"),
            Plain(RET, ALLOW),
            Mark("flags"),
            load(low_half(0)),
            Jump(JSET, CLONE_NEW_ANY, "eperm"),
            Plain(RET, ALLOW),
            Mark("socket"),
            load(low_half(0)),
            Jump(JEQ, AF_UNIX, "eafnosupport"),
            Plain(RET, ALLOW),
            Mark("socketpair"),
            load(low_half(1)),
            Plain(AND, SOCK_TYPE_MASK),
            Jump(JEQ, SOCK_DGRAM, "eafnosupport"),
            Plain(RET, ALLOW),
            *_epilogue(),
        ]
    )


def programs(arch: Arch) -> dict[str, str]:
    """All of them for a machine, in hexadecimal digits."""
    made = {
        "base": base_filter(arch),
        "shim": base_filter(arch, netfilter=True),
        "root": root_filter(arch),
        "strict": strict_filter(arch),
    }
    return {name: program.hex() for name, program in made.items()}


def text() -> str:
    """The module `filters`."""
    lines = [
        '"""The programs of `seccomp`, assembled for each machine: what `python -m skep_bwrap.seccomp` prints."""',
        *("", "from __future__ import annotations", "", "PROGRAMS: dict[str, dict[str, str]] = {"),
    ]
    for machine, arch in ARCHES.items():
        lines.append(f'    "{machine}": {{')
        for name, digits in programs(arch).items():
            pieces = [digits[at : at + 96] for at in range(0, len(digits), 96)]
            lines += [f'        "{name}": (', *(f'            "{piece}"' for piece in pieces), "        ),"]
        lines.append("    },")
    return "\n".join((*lines, "}")) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
