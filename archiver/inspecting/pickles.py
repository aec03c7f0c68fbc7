"""Finds what pickles would import, by picklescan; nothing is unpickled.

picklescan knows the names of functions that run code, and of some that do not. It reads names, so these stay unseen:
pickles that begin in the middle of a file, extension codes, persistent references, and opcodes that Python's unpickler
accepts but `pickletools` does not."""

import io
import logging
import pickletools
import re
from dataclasses import dataclass

from picklescan.scanner import SafetyLevel, ScanResult, scan_pickle_bytes

from marina.archiver.inspecting.formats import PICKLE_NAMES

# It reports by its result; its warnings would be printed beside ours.
logging.getLogger("picklescan").setLevel(logging.CRITICAL + 1)

MISSED = (
    "pickles in the middle of a file, extension codes, persistent references, and what Python's unpickler reads but "
    "pickletools does not"
)
# Of torch's weights-only unpickler, what picklescan does not list: these only make tensors and plain data.
_HARMLESS = re.compile(
    r"torch (Size|device|bool|(b?float|complex|u?int|bits|qu?int)\d\w*|per_(tensor|channel)_\w+)"
    r"|torch (?!Typed|Untyped)\w+Storage"
    r"|torch\.storage (Typed|Untyped)Storage|torch\.nn\.parameter Parameter|torch\.serialization _get_layout"
    r"|torch\._utils _rebuild_(parameter|sparse_tensor|qtensor|tensor|tensor_v3|device_tensor_from_numpy)"
    r"|collections Counter|_codecs encode|__builtin__ (set|bytearray|complex)|builtins (set|bytearray|complex)"
    r"|__torch__\.\S+ \S+|torch\.jit\._pickle \w+"  # TorchScript's own classes, which no Python module has
)
_OBJECTS = re.compile(rb"['\"]\|?O")  # a type of objects in a numpy file's header
_MOST_READS = 8_000_000
_CONTAINERS = (b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")


@dataclass(frozen=True)
class Pickle:
    """A pickle in a file: the names that loading it imports, and the reasons why that may run code."""

    file: str
    imports: tuple[str, ...]
    reasons: tuple[str, ...] = ()

    @property
    def runs_code(self) -> bool:
        return bool(self.reasons)


class _TooLong(Exception):
    """The pickle has more opcodes than are scanned."""


class _Stream(io.BytesIO):
    """Counts reads, of which each opcode takes one or two."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise _TooLong
        return super().read(size)


def find_pickle(name: str, data: bytes, kind: str) -> Pickle | None:
    """What the pickles at the beginning of a file of this format import; None if there are none worth reporting."""
    if kind == "numpy array":
        end = 10 + int.from_bytes(data[8:10], "little")
        if not _OBJECTS.search(data[:end]):
            return None
        data, kind = data[end:], "pickle"
    elif data.startswith(_CONTAINERS):
        return None
    try:
        found: ScanResult | None = scan_pickle_bytes(_Stream(data), name)
    except _TooLong:
        return Pickle(name, (), (f"more than {_MOST_READS:,} pieces, too many to be scanned",))
    except Exception:  # whatever picklescan fails with, it has not seen all
        found = None
    has_name = name.lower().endswith(PICKLE_NAMES) and kind == "pickle"
    if found is None or (has_name and not found.globals and not _is_complete(data)):
        return Pickle(name, (), ("is named like a pickle, but cannot be read as one",)) if has_name else None
    imports = {f"{item.module} {item.name}": item.safety for item in found.globals}
    if kind != "pickle" and SafetyLevel.Dangerous not in imports.values():
        return None  # words may look like imports, but not of these modules
    reasons = [_judge(*each) for each in sorted(imports.items(), key=str)]
    return Pickle(name, tuple(sorted(imports)), tuple(filter(None, reasons)))


def _judge(name: str, safety: SafetyLevel) -> str | None:
    if safety is SafetyLevel.Dangerous:
        return f"imports {name}, which runs code"
    if safety is SafetyLevel.Suspicious and not _HARMLESS.fullmatch(name):
        return f"imports {name}, which is not known to be harmless"
    return None


def _is_complete(data: bytes) -> bool:
    """Whether a whole pickle is at the beginning."""
    try:
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(_Stream(data)))
    except Exception:
        return False
