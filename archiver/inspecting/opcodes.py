"""Reads the opcodes of a pickle with their raw arguments.

`pickletools` refuses some arguments that Python's unpickler accepts, so it would overlook those pickles. Here an
argument is only measured, never validated."""

import pickletools
from collections.abc import Iterator

# The number of bytes of an argument's length prefix, by pickletools' code for it.
_PREFIXED = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_TWO_LINES = ("GLOBAL", "INST")
_KINDS = {ord(opcode.code): (opcode.name, opcode.arg.n if opcode.arg else 0) for opcode in pickletools.opcodes}


def read_opcodes(data: bytes, at: int) -> Iterator[tuple[str, bytes, int]]:
    """The name, argument and end position of each opcode from a position on, up to STOP. Ends earlier where an
    unpickler would fail: at a byte that is not an opcode, or at an argument that is cut off."""
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
                length = int.from_bytes(data[at : at + size], "little")
                at += size
            if at + length > len(data):
                return
            argument, at = data[at : at + length], at + length
        yield name, argument, at
        if name == "STOP":
            return
