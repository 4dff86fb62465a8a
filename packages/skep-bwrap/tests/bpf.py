"""An interpreter of classic BPF as seccomp(2) runs it, written from Documentation/networking/filter.rst alone."""

from __future__ import annotations

import struct

KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000


def run(program: bytes, data: bytes) -> int:
    """What the filter returns for a struct seccomp_data."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, counter = 0, 0
    while True:
        code, yes, no, k = instructions[counter]
        counter += 1
        match code & 0x07:
            case 0x00:  # BPF_LD
                assert code == 0x20, f"load {code:#x}: only absolute words exist in seccomp"
                assert k % 4 == 0 and k < len(data)
                (accumulator,) = struct.unpack_from("=I", data, k)
            case 0x04:  # BPF_ALU
                assert code == 0x54, f"arithmetic {code:#x}"
                accumulator &= k
            case 0x05:  # BPF_JMP
                assert not code & 0x08, "compares with a constant"
                match code & 0xF0:
                    case 0x10:
                        taken = accumulator == k
                    case 0x20:
                        taken = accumulator > k
                    case 0x30:
                        taken = accumulator >= k
                    case 0x40:
                        taken = bool(accumulator & k)
                    case other:
                        raise AssertionError(f"jump {other:#x}")
                counter += yes if taken else no
            case 0x06:  # BPF_RET
                assert code == 0x06, "returns a constant"
                return k
            case other:
                raise AssertionError(f"class {other}")


def call(number: int, *arguments: int, arch: int, pointer: int = 0) -> bytes:
    """struct seccomp_data of a system call."""
    padded = [argument & 0xFFFFFFFFFFFFFFFF for argument in (*arguments, 0, 0, 0, 0, 0, 0)][:6]
    return struct.pack("=IIQ6Q", number & 0xFFFFFFFF, arch, pointer, *padded)
