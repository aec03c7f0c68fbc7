"""The opcodes of a pickle with their bare arguments.

`pickletools` refuses arguments that Python's unpickler takes, and what it refuses would go unseen: here an argument is
only measured, never judged.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator

# How many bytes say how long an argument is, by the codes that pickletools has for it.
_PREFIXED = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_TWO_LINES = ("GLOBAL", "INST")
_KINDS = {ord(opcode.code): (opcode.name, opcode.arg.n if opcode.arg else 0) for opcode in pickletools.opcodes}


def read_opcodes(data: bytes, at: int) -> Iterator[tuple[str, bytes, int]]:
    """Name, argument and end of each opcode from a position on, up to STOP; earlier where an unpickler would fail, at a
    byte that is not an opcode or at an argument that is cut off."""
    while at < len(data):
        name, length = _KINDS.get(data[at], ("", 0))
        at += 1
        if not name:
            return
        if length == pickletools.UP_TO_NEWLINE:
            end = data.find(b"\n", at)
            if name in _TWO_LINES and end >= 0:
                end = data.find(b"\n", end + 1)
            if end < 0:
                return
            argument, at = data[at:end], end + 1
        else:
            if length < 0:
                size = _PREFIXED[length]
                counted = data[at : at + size]
                at += size
                length = int.from_bytes(counted, "little")
            if at + length > len(data):
                return
            argument, at = data[at : at + length], at + length
        yield name, argument, at
        if name == "STOP":
            return
