"""Finds pickles in the files of an archive and what they would import, without ever loading one."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

# What the tensor files of torch import, and nothing else may: anything more can run code when it is loaded.
_TENSOR_IMPORTS = re.compile(
    r"torch\._utils _rebuild_(tensor_v2|parameter|qtensor|sparse_tensor)"
    r"|collections OrderedDict"
    r"|torch \w+Storage|torch\.storage (Typed|Untyped)Storage"
    r"|torch (float|double|half|bfloat|int|long|short|uint|bool)\w*|torch Size|torch device"
)
_DEEPEST = 3


@dataclass(frozen=True)
class Pickle:
    """A pickle in a file: the names it imports when it is loaded, and whether they are more than tensors."""

    file: str
    imports: tuple[str, ...]
    runs_code: bool


def find_pickles(name: str, data: bytes, depth: int = 0) -> Iterator[Pickle]:
    """Every pickle in a file, also inside the zip files that torch saves."""
    if data[:4] == b"PK\x03\x04" and depth < _DEEPEST:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                yield from find_pickles(f"{name}:{member}", archive.read(member), depth + 1)
    # Protocol 2 and later begin with this byte and a small version; older ones are only looked for by name.
    elif (data[:1] == b"\x80" and data[1:2] <= b"\x05") or name.endswith((".pkl", ".pickle")):
        imports = _imports(data)
        if imports is not None:
            yield Pickle(name, imports, not all(map(_TENSOR_IMPORTS.fullmatch, imports)))


def _imports(data: bytes) -> tuple[str, ...] | None:
    """The `module name` pairs a pickle asks for; None when it is no pickle."""
    found: list[str] = []
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in ("GLOBAL", "INST"):
                found.append(str(argument))
            elif opcode.name == "STACK_GLOBAL":
                # Its two names are the texts before it; memo operations may stand between.
                found.append(" ".join(texts[-2:]))
            elif isinstance(argument, str):
                texts.append(argument)
    except ValueError:
        return None if not found else tuple(sorted(set(found)))
    return tuple(sorted(set(found)))
