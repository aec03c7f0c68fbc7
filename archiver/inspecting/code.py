"""Finds code in an archive other than Python source: machine code, scripts, and files that would replace a module."""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from marina.archiver.inspecting.side_effects import find_side_effects

_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ\x90")
_NATIVE_NAMES = re.compile(r"\.(so(\.\d+)*|dll|dylib|pyd|exe|pyc|pyo|jar|class|sh)$", re.IGNORECASE)
# System functions that no model needs in order to compute.
_SYSTEM_CALLS = re.compile(
    rb"\0(system|popen|exec[lv]p?e?|fexecve|execveat|posix_spawnp?|fork|vfork|clone3?|socket|connect|dlopen|dlmopen|"
    rb"dlsym|ptrace|syscall|mprotect|unlink|unlinkat|rename|chmod|setuid|PyRun_\w+|PyImport_\w+|PyEval_\w+)\0"
)


def find_code(name: str, data: bytes, *, is_recorded: bool) -> Iterator[str]:
    """A sentence for each thing, other than Python source, that a person must review before loading the file.
    `is_recorded`: the archive's record names the file as one that the server loads."""
    yield from find_side_effects(name, data)
    if data.startswith(_NATIVE) or _NATIVE_NAMES.search(name):
        yield from _judge_native(name, data, is_recorded=is_recorded)
    elif data.startswith(b"#!"):
        yield f"{name}: a script"


def is_foreign_python(name: str, data: bytes) -> bool:
    """Whether the file is Python source that is not part of this version's `handlers`."""
    return name.lower().endswith((".py", ".pyw")) and hashlib.sha256(data).hexdigest() != _own_hashes().get(name)


def hides_module(name: str) -> str | None:
    """The module that a file would replace in a worker, because the archive comes first on its path; None if none."""
    # The record of an archive may have a worker look for modules in `source` too.
    top = next(iter(PurePosixPath(name.removeprefix("source/")).parts), "").partition(".")[0]
    is_module = name.lower().endswith((".py", ".pyc", ".so"))
    reserved = sys.stdlib_module_names | {
        "numpy",
        "torch",
        "torchvision",
        "ts",
        "sitecustomize",
        "usercustomize",
        "PIL",
    }
    return top if is_module and top in reserved else None


@cache
def _own_hashes() -> dict[str, str]:
    """The sha256 of each file of this version's `handlers`, by its name in an archive."""
    origin = importlib.util.find_spec("marina.handlers")
    if origin is None or origin.origin is None:
        return {}
    folder = Path(origin.origin).parent
    return {
        f"marina/handlers/{file.relative_to(folder).as_posix()}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*.py")
    }


def _judge_native(name: str, data: bytes, *, is_recorded: bool) -> Iterator[str]:
    if not is_recorded:
        yield f"{name}: machine code that is not in the record"
    elif calls := sorted({match[1].decode() for match in _SYSTEM_CALLS.finditer(data)}):
        yield f"{name}: machine code that calls {', '.join(f'`{call}`' for call in calls)}, which no model needs"
