"""Starts bubblewrap with a filter that refuses the kernel's keyrings to all that it confines.

Keys of a user and of its persistent keyring outlive every process and are not hidden by any
namespace, so that one server could leave them for the next. Runs as a program of its own
(`python -I -S keyrings.py BWRAP ARGUMENT ...`), on the standard library alone: the filter reaches
bubblewrap as an open file, which no command line can carry.
"""

import errno
import os
import platform
import struct
import sys

X32_BIT = 0x40000000
"""Set in the numbers of x86_64's third interface, which are otherwise the same."""
INTERFACES = {
    "x86_64": ((0xC000003E, (248, 249, 250)), (0x40000003, (286, 287, 288))),
    "aarch64": ((0xC00000B7, (217, 218, 219)), (0x40000028, (309, 310, 311))),
}
"""By machine: what its kernel calls each interface, 64 bits and 32 bits, with the numbers of
add_key, request_key and keyctl."""
CANNOT_START = 126
"""Exit code when the command cannot be executed, as a shell gives it."""
_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
"""BPF: load a word of the call's data, mask it, jump when equal, end."""
_NUMBER_AT, _INTERFACE_AT = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def filter_program(machine: str) -> bytes:
    """The filter, as the kernel takes it: calls of keyrings fail, as does an unknown interface.

    Raises:
        KeyError: a machine whose numbers are not known.
    """
    lines = [(_LOAD, 0, 0, _INTERFACE_AT)]
    for interface, numbers in INTERFACES[machine]:
        block = [(_LOAD, 0, 0, _NUMBER_AT), (_AND, 0, 0, 0xFFFFFFFF ^ X32_BIT)]
        # A match jumps over the rest of the numbers and over the permission.
        block += [(_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
        block += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
        lines += [(_EQUAL, 0, len(block), interface), *block]
    lines.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def main(command: list[str]) -> int:
    """Become bubblewrap; returns only when that fails."""
    machine = platform.machine()
    if machine not in INTERFACES:
        return _fail(f"cannot refuse keyrings on {machine}; isolation 'none' confines nothing")
    number = os.memfd_create("filter", 0)
    os.write(number, filter_program(machine))
    os.lseek(number, 0, os.SEEK_SET)
    try:
        os.execvp(command[0], [command[0], "--seccomp", str(number), *command[1:]])
    except OSError as error:
        return _fail(f"cannot start {command[0]}: {error.strerror}")


def _fail(message: str) -> int:
    os.write(2, f"{message}\n".encode())
    return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
