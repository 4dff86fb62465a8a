"""The filters, run by an interpreter of the tests' own for both architectures."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skep_bwrap import filters, seccomp
from skep_bwrap.seccomp import (
    ARCHES,
    Jump,
    Line,
    Mark,
    Plain,
    assemble,
    base_filter,
    root_filter,
    strict_filter,
)

from . import bpf

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
TIOCSTI, TIOCLINUX, TIOCGWINSZ = 0x5412, 0x541C, 0x5413
UNIX, INET, INET6, NETLINK, PACKET, ALG, VSOCK = 1, 2, 10, 16, 17, 38, 40

machines = pytest.mark.parametrize("machine", sorted(ARCHES))


def verdict(machine: str, name: str | int, *arguments: int, strict: bool = False, arch: int | None = None) -> int:
    """0 for a call that is let through, else its errno; -1 for one that kills."""
    known = ARCHES[machine]
    number = known.numbers[name] if isinstance(name, str) else name
    data = bpf.call(number, *arguments, arch=AUDIT[machine] if arch is None else arch)
    answer = bpf.run(strict_filter(known) if strict else base_filter(known), data)
    if answer == bpf.ALLOW:
        return 0
    return -1 if answer == bpf.KILL else answer - bpf.ERRNO


@machines
@pytest.mark.parametrize("name", seccomp.DENIED)
def test_a_denied_call_fails_with_eperm_whatever_its_arguments(machine: str, name: str) -> None:
    for argument in (0, 1, -1, 0x5412, 2**63):
        assert verdict(machine, name, argument, argument, argument) == errno.EPERM


@machines
def test_a_call_nobody_named_is_let_through(machine: str) -> None:
    named = set(ARCHES[machine].numbers.values())
    for number in range(500):
        if number not in named:
            assert verdict(machine, number, 1, 2, 3) == 0


@machines
@pytest.mark.parametrize("command", [TIOCSTI, TIOCLINUX])
def test_typing_into_a_terminal_is_refused_as_the_kernel_reads_the_number(machine: str, command: int) -> None:
    assert verdict(machine, "ioctl", 0, command) == errno.EPERM
    assert verdict(machine, "ioctl", 0, command | 0xDEADBEEF00000000) == errno.EPERM
    assert verdict(machine, "ioctl", command, TIOCGWINSZ) == 0
    assert verdict(machine, "ioctl", 0, command - 1) == 0
    assert verdict(machine, "ioctl", 0, command << 32) == 0


@machines
def test_a_lease_is_refused_and_locks_are_not(machine: str) -> None:
    lease, get_lease, lock, duplicate = 1024, 1025, 6, 1030
    assert verdict(machine, "fcntl", 3, lease, 1) == errno.EPERM
    assert verdict(machine, "fcntl", 3, lease | 1 << 32, 1) == errno.EPERM
    for command in (get_lease, lock, duplicate, lease << 32):
        assert verdict(machine, "fcntl", 3, command, 1) == 0
    assert verdict(machine, "fcntl", lease, lock, 1) == 0


@machines
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((UNIX, 1, 0), 0),
        ((INET, 1, 0), 0),
        ((INET6, 2, 0), 0),
        ((NETLINK, 3, 0), 0),
        ((NETLINK, 3, 4), errno.EAFNOSUPPORT),  # NETLINK_SOCK_DIAG lists the host's sockets
        ((NETLINK, 3, 9), errno.EAFNOSUPPORT),
        ((PACKET, 3, 0), errno.EAFNOSUPPORT),
        ((ALG, 5, 0), errno.EAFNOSUPPORT),
        ((VSOCK, 1, 0), errno.EAFNOSUPPORT),
        ((0, 1, 0), errno.EAFNOSUPPORT),
        ((VSOCK | 1 << 32, 1, 0), errno.EAFNOSUPPORT),
        ((INET | 1 << 32, 1, 0), 0),
        ((-1, 1, 0), errno.EAFNOSUPPORT),
    ],
)
def test_socket_families(machine: str, arguments: tuple[int, ...], answer: int) -> None:
    assert verdict(machine, "socket", *arguments) == answer


@machines
def test_the_shim_may_set_up_nf_tables_and_the_worker_may_not(machine: str) -> None:
    for netfilter, answer in ((True, bpf.ALLOW), (False, bpf.ERRNO | errno.EAFNOSUPPORT)):
        data = bpf.call(ARCHES[machine].numbers["socket"], NETLINK, 3, 12, arch=AUDIT[machine])
        assert bpf.run(base_filter(ARCHES[machine], netfilter=netfilter), data) == answer


@machines
def test_numbers_of_another_architecture_kill(machine: str) -> None:
    for arch in (0x40000003, *(value for name, value in AUDIT.items() if name != machine)):
        for strict in (False, True):
            assert verdict(machine, 0, arch=arch, strict=strict) == -1


def test_x32_and_no_call_at_all_are_enosys() -> None:
    for number in (0x40000000, 0x40000000 + 16, 0xFFFFFFFF):
        assert verdict("x86_64", number) == errno.ENOSYS
        assert verdict("x86_64", number, strict=True) == errno.ENOSYS


@machines
@pytest.mark.parametrize("flag", [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_strict_refuses_every_new_namespace(machine: str, flag: int) -> None:
    for name in ("clone", "unshare"):
        assert verdict(machine, name, flag | 17, strict=True) == errno.EPERM
        assert verdict(machine, name, 0x00100000 | 17, strict=True) == 0
        assert verdict(machine, name, flag | 17) == 0
    assert verdict(machine, "unshare", 0x80, strict=True) == errno.EPERM
    assert verdict(machine, "clone3", strict=True) == errno.ENOSYS
    assert verdict(machine, "clone3") == 0


@machines
def test_root_gets_no_user_namespace_and_every_other(machine: str) -> None:
    known = ARCHES[machine]

    def answer(name: str, flags: int) -> int:
        return bpf.run(root_filter(known), bpf.call(known.numbers[name], flags, arch=AUDIT[machine]))

    for name in ("clone", "unshare"):
        for flags in (0x10000000, 0x10020000, 0x10000000 | 17, 0x10000000 | 1 << 40):
            assert answer(name, flags) == bpf.ERRNO | errno.EPERM
        for flags in (0, 17, 0x20000, 0x3D0F00, 0x02000000, 0x10000000 << 32):
            assert answer(name, flags) == bpf.ALLOW
    assert answer("clone3", 0) == bpf.ERRNO | errno.ENOSYS and answer("mount", 0x10000000) == bpf.ALLOW


@machines
def test_threads_and_forks_are_no_namespaces(machine: str) -> None:
    pthread_create = (
        0x3D0F00  # what glibc passes: VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID
    )
    for flags in (pthread_create, 0x01200011, 0x4111):
        assert verdict(machine, "clone", flags, strict=True) == 0


@machines
def test_strict_refuses_unix_sockets_and_pairs_that_can_be_turned(machine: str) -> None:
    assert verdict(machine, "socket", UNIX, 1, strict=True) == errno.EAFNOSUPPORT
    assert verdict(machine, "socket", INET, 1, strict=True) == 0
    for kind in (2, 2 | 0o4000, 2 | 0o2000000):
        assert verdict(machine, "socketpair", UNIX, kind, strict=True) == errno.EAFNOSUPPORT
    assert verdict(machine, "socketpair", UNIX, 1 | 0o2000000, strict=True) == 0
    assert verdict(machine, "socketpair", UNIX, 5, strict=True) == 0
    for name in seccomp.DENIED_STRICT:
        assert verdict(machine, name, strict=True) == errno.EPERM


@machines
def test_the_numbers_are_the_kernels(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip(f"no kernel headers of {machine} here")
    text = header.read_text()
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    ours = ARCHES[machine].numbers
    assert {name: known.get(name) for name in ours} == ours


def test_every_architecture_knows_the_same_calls() -> None:
    first, *others = (set(arch.numbers) for arch in ARCHES.values())
    assert all(other == first for other in others)
    assert {*seccomp.DENIED, *seccomp.DENIED_STRICT} <= first


def symbolic(lines: list[Line], data: bytes) -> int:
    """What the lines mean, without their places in the assembled program."""
    at, accumulator = 0, 0
    while True:
        match lines[at]:
            case Plain(op, value):
                if op == seccomp.RET:
                    return value
                accumulator = (
                    int.from_bytes(data[value : value + 4], "little") if op == seccomp.LD_W_ABS else accumulator & value
                )
                at += 1
            case Jump(op, value, yes):
                taken = {
                    seccomp.JEQ: accumulator == value,
                    seccomp.JGE: accumulator >= value,
                    seccomp.JSET: bool(accumulator & value),
                }[op]
                at = lines.index(Mark(yes)) if taken else at + 1
            case Mark():
                at += 1


words = st.one_of(st.integers(0, 40), st.integers(0, 0xFFFFFFFF))


@st.composite
def programs(draw: st.DrawFn) -> list[Line]:
    """Programs whose jumps go forward to marks near the end."""
    marks = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    steps: list[Line] = []
    for _ in range(draw(st.integers(0, 30))):
        if draw(st.booleans()):
            op = draw(st.sampled_from([seccomp.JEQ, seccomp.JGE, seccomp.JSET]))
            steps.append(Jump(op, draw(words), draw(st.sampled_from(marks))))
        elif draw(st.booleans()):
            steps.append(Plain(seccomp.LD_W_ABS, 4 * draw(st.integers(0, 15))))
        else:
            steps.append(Plain(seccomp.AND, draw(words)))
    for mark in marks:
        steps += [Mark(mark), Plain(seccomp.RET, draw(words))]
    return steps


@given(programs(), st.lists(words, min_size=16, max_size=16))
def test_an_assembled_program_does_what_its_lines_say(lines: list[Line], data: list[int]) -> None:
    packed = b"".join(word.to_bytes(4, "little") for word in data)
    assert bpf.run(assemble(lines), packed) == symbolic(lines, packed)


@pytest.mark.parametrize(
    "lines",
    [
        [Jump(seccomp.JEQ, 0, "nowhere"), Plain(seccomp.RET, 0)],
        [Mark("back"), Plain(seccomp.RET, 0), Jump(seccomp.JEQ, 0, "back")],
        [Jump(seccomp.JEQ, 0, "far"), *([Plain(seccomp.AND, 1)] * 256), Mark("far"), Plain(seccomp.RET, 0)],
    ],
    ids=["absent", "backward", "too far"],
)
def test_a_jump_that_cannot_be_made_is_an_error(lines: list[Line]) -> None:
    with pytest.raises(ValueError, match="jump"):
        assemble(lines)


def test_the_farthest_jump_works() -> None:
    lines: list[Line] = [
        Jump(seccomp.JEQ, 0, "far"),
        *([Plain(seccomp.AND, 1)] * 255),
        Mark("far"),
        Plain(seccomp.RET, 7),
    ]
    assert bpf.run(assemble(lines), bpf.call(0, arch=0)) == 7


def test_the_programs_that_are_kept_are_what_the_assembler_makes() -> None:
    assert {machine: seccomp.programs(arch) for machine, arch in ARCHES.items()} == filters.PROGRAMS
    assert Path(filters.__file__).read_text() == seccomp.text(), (
        "python -m skep_bwrap.seccomp prints the file as it should be"
    )
