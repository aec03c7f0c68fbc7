"""What in an archive is code, and whether it is more than a handler's usual work.

Reading code proves nothing: who writes it can hide from a reader. So a little is allowed, and what else there is has to
be read by a person.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from archiver.inspecting.files import find_effects

_MODULES_TEXT = (
    "PIL __future__ abc base64 binascii bisect cmath collections contextlib copy dataclasses datetime decimal "
    "enum fractions functools handlers hashlib heapq html itertools json logging math numbers numpy orjson random "
    "re safetensors simplejpeg statistics string struct textwrap time tokenizers torch torchvision ts typing "
    "typing_extensions unicodedata uuid warnings"
)
_MODULES = frozenset(_MODULES_TEXT.split())
_NAMES_TEXT = (
    "__builtins__ __import__ __loader__ __spec__ breakpoint compile delattr eval exec getattr globals help input "
    "locals open setattr vars"
)
_NAMES = frozenset(_NAMES_TEXT.split())
# Ways from a harmless module to one that is not, and functions that load or write what they are told.
_ATTRIBUTES_TEXT = (
    "DataSource FileHandler ForwardRef ImageGrab ImageMath ImageShow benchmark bottleneck builtins codecs collect_env "
    "cpp_extension ctypes ctypeslib distributed distutils download_and_extract_archive download_url exec "
    "execWrapper exec_command f2py fork fromfile from_file genfromtxt get_type_hints hub import_module importlib "
    "lambda_eval linecache load_inline load_library load_state_dict_from_url loadtxt memmap model_zoo multiprocessing "
    "nt os package pickle popen posix pty read_array read_file rundocs runstring save_file serialization "
    "shutil socket spawn subprocess sys system tofile unsafe_eval urllib vllm_process write_file"
)
_ATTRIBUTES = frozenset(_ATTRIBUTES_TEXT.split())
_SUBMODULES = frozenset({"logging.config", "logging.handlers"})
_DUNDERS_TEXT = (
    "__call__ __class__ __doc__ __enter__ __exit__ __getitem__ __init__ __len__ __name__ __post_init__ __repr__ "
    "__str__ __version__"
)
_DUNDERS = frozenset(_DUNDERS_TEXT.split())
# Where names of others begin with an underscore they are not meant to be called; these are in common use.
_PRIVATE_IN_USE = re.compile(r"torch\.(_assert|nn\..*)|torchvision\..*|_")
_SAFE_LOADERS = frozenset({"json", "orjson", "safetensors"})
_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ\x90")
_NATIVE_NAMES = re.compile(r"\.(so(\.\d+)*|dll|dylib|pyd|exe|pyc|pyo|jar|class|sh)$", re.IGNORECASE)
# A model computes; functions of the system by these names have no part in that.
_SYSTEM_CALLS = re.compile(
    rb"\0(system|popen|exec[lv]p?e?|fexecve|execveat|posix_spawnp?|fork|vfork|clone3?|socket|connect|dlopen|dlmopen|"
    rb"dlsym|ptrace|syscall|mprotect|unlink|unlinkat|rename|chmod|setuid|PyRun_\w+|PyImport_\w+|PyEval_\w+)\0"
)


def find_code(name: str, data: bytes, *, is_recorded: bool, beside: frozenset[str] = frozenset()) -> Iterator[str]:
    """What a person has to read before the file is loaded; `is_recorded`: the record of the archive names it as one
    that the server loads; `beside`: modules that it may import because they are looked at too."""
    yield from find_effects(name, data)
    if data.startswith(_NATIVE) or _NATIVE_NAMES.search(name):
        yield from _of_native(name, data, is_recorded=is_recorded)
    elif name.lower().endswith((".py", ".pyw")):
        if hashlib.sha256(data).hexdigest() != _own_hashes().get(name):
            yield from _of_python(name, data, beside)
    elif data.startswith(b"#!"):
        yield f"{name}: a script"


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


def _of_python(name: str, data: bytes, beside: frozenset[str]) -> Iterator[str]:
    reader = _Reader(beside)
    try:
        reader.visit(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield f"{name}: Python that cannot be read"
        return
    for line, text in sorted(set(reader.uses))[:5]:
        yield f"{name}:{line}: uses {text}"


class _Reader(ast.NodeVisitor):
    """Collects what is not on the short list of what a handler needs."""

    def __init__(self, beside: frozenset[str]) -> None:
        self.uses: list[tuple[int, str]] = []
        self._beside = beside
        self._modules: dict[str, str] = {}
        self._called: set[ast.AST] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)
            self._modules[alias.asname or alias.name.partition(".")[0]] = alias.name.partition(".")[0]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0:
            self._module(node, node.module or "")
        for alias in node.names:
            self._attribute(node, alias.name)
            if node.level == 0:
                self._private(node, f"{node.module}.{alias.name}")
            loads = alias.name in ("load", "loads") and (node.module or "").partition(".")[0] not in _SAFE_LOADERS
            if loads or alias.name == "*":
                self._add(node, f"`{node.module}.{alias.name}`")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in _NAMES:
            self._add(node, f"`{node.id}`")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._attribute(node, node.attr)
        is_loader = node.attr in ("load", "loads") and node not in self._called
        if is_loader or node.attr.startswith("_"):
            top, _, rest = ast.unparse(node).partition(".")
            if is_loader and top in self._modules:
                self._loader(node, [], [])
            elif top in self._modules:
                self._private(node, f"{self._modules[top]}.{rest}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name) and function.id == "getattr":
            key = node.args[1] if len(node.args) > 1 else None
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self._attribute(node, key.value)
            else:
                self._add(node, "`getattr` with a name that is not written out")
            for part in (*node.args, *node.keywords):
                self.visit(part)
            return
        if isinstance(function, ast.Attribute) and function.attr in ("load", "loads", "save", "savez"):
            self._called.add(function)
            self._loader(function, node.args, node.keywords)
        self.generic_visit(node)

    def _loader(self, function: ast.Attribute, args: list[ast.expr], keywords: list[ast.keyword]) -> None:
        """A function that loads or saves, and how it is called."""
        module = self._modules.get(function.value.id, "") if isinstance(function.value, ast.Name) else ""
        settings = {word.arg: word.value for word in keywords}
        weights_only = settings.get("weights_only")
        is_plain = isinstance(weights_only, ast.Constant) and weights_only.value is True
        if function.attr.startswith("save"):
            is_plain = not module
        elif module == "numpy":
            is_plain = bool(args) and not settings.keys() & {"allow_pickle", None} and len(args) < 3
        if module not in _SAFE_LOADERS and not is_plain:
            self._add(function, f"`{ast.unparse(function)}`")

    def _module(self, node: ast.stmt, name: str) -> None:
        top, *inner = name.split(".")
        if top not in _MODULES | self._beside or name in _SUBMODULES:
            self._add(node, f"`{name}`")
        for part in inner:
            self._attribute(node, part)
        self._private(node, name)

    def _private(self, node: ast.AST, path: str) -> None:
        """What another module keeps to itself, under its full name."""
        hidden = [part for part in path.split(".")[1:] if part.startswith("_") and not part.startswith("__")]
        if hidden and path.partition(".")[0] not in self._beside and not _PRIVATE_IN_USE.match(path):
            self._add(node, f"`{path}`")

    def _attribute(self, node: ast.AST, name: str) -> None:
        is_hidden = name.startswith("__") and name.endswith("__") and name not in _DUNDERS
        if name in _ATTRIBUTES or is_hidden:
            self._add(node, f"`{name}`")

    def _add(self, node: ast.AST, text: str) -> None:
        self.uses.append((getattr(node, "lineno", 0), text))
