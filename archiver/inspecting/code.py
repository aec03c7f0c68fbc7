"""What in an archive is code other than Python's texts: machine code, scripts, and files that take a module's place."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from archiver.inspecting.side_effects import find_side_effects

_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ\x90")
_NATIVE_NAMES = re.compile(r"\.(so(\.\d+)*|dll|dylib|pyd|exe|pyc|pyo|jar|class|sh)$", re.IGNORECASE)
# A model computes; functions of the system by these names have no part in that.
_SYSTEM_CALLS = re.compile(
    rb"\0(system|popen|exec[lv]p?e?|fexecve|execveat|posix_spawnp?|fork|vfork|clone3?|socket|connect|dlopen|dlmopen|"
    rb"dlsym|ptrace|syscall|mprotect|unlink|unlinkat|rename|chmod|setuid|PyRun_\w+|PyImport_\w+|PyEval_\w+)\0"
)


def find_code(name: str, data: bytes, *, is_recorded: bool) -> Iterator[str]:
    """What a person has to read before the file is loaded, where it is not Python; `is_recorded`: the record of the
    archive names it as one that the server loads."""
    yield from find_side_effects(name, data)
    if data.startswith(_NATIVE) or _NATIVE_NAMES.search(name):
        yield from _of_native(name, data, is_recorded=is_recorded)
    elif data.startswith(b"#!"):
        yield f"{name}: a script"


def is_foreign_python(name: str, data: bytes) -> bool:
    """Whether the file is Python, and none of this version's own."""
    return name.lower().endswith((".py", ".pyw")) and hashlib.sha256(data).hexdigest() != _own_hashes().get(name)


def hides_module(name: str) -> str | None:
    """The module that a file would replace in a worker, on whose path the archive comes first."""
    top = PurePosixPath(name).parts[0].partition(".")[0] if name else ""
    is_module = name.lower().endswith((".py", ".pyc", ".so"))
    taken = sys.stdlib_module_names | {"numpy", "torch", "torchvision", "ts", "sitecustomize", "usercustomize", "PIL"}
    return top if is_module and top in taken else None


@cache
def _own_hashes() -> dict[str, str]:
    """The files of this version's `handlers`, by their names in an archive."""
    origin = importlib.util.find_spec("handlers")
    if origin is None or origin.origin is None:
        return {}
    folder = Path(origin.origin).parent
    return {
        f"handlers/{file.relative_to(folder).as_posix()}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.py")
    }


def _of_native(name: str, data: bytes, *, is_recorded: bool) -> Iterator[str]:
    if not is_recorded:
        yield f"{name}: machine code that no record names"
    elif calls := sorted({match[1].decode() for match in _SYSTEM_CALLS.finditer(data)}):
        yield f"{name}: machine code that calls {', '.join(f'`{call}`' for call in calls)}, which no model needs"
