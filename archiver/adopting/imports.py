"""What the modules of an archive import that a pod does not have.

Most archives bring no requirements, because the image of their server had their libraries."""

import ast
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from marina.archiver.adopting.foreign import ForeignArchive
from marina.archiver.rehearse import hidden_modules

_TORCHSERVE = "ts"


def missing_in_pod(foreign: ForeignArchive) -> list[str]:
    """The top-level modules that are imported and that a pod lacks, sorted; those whose import may fail do not count,
    and those that TorchServe's own handlers import do."""
    own = {Path(name).parts[0].removesuffix(".py") for name in foreign.sizes}
    names: set[str] = set()
    for name, text in foreign.sources.items():
        names.update(_imported(text, Path(name).parent.parts))
    handler = (foreign.handler or "").partition(":")[0]
    waiting = {name for name in names if name.partition(".")[0] == _TORCHSERVE}
    if handler and f"{handler.removesuffix('.py')}.py" not in foreign.sizes:
        waiting.add(f"{_TORCHSERVE}.torch_handler.{handler}")
    names |= _of_torchserve(waiting)
    tops = {name.partition(".")[0] for name in names} - own - sys.stdlib_module_names - {_TORCHSERVE, ""}
    if str(foreign.model.get("serializedFile")).endswith(".onnx"):
        # TorchServe's handlers do without it, but not for such a model.
        tops.add("onnxruntime")
    hidden = hidden_modules()
    return sorted(top for top in tops if top in hidden or find_spec(top) is None)


def _of_torchserve(waiting: set[str]) -> set[str]:
    """All that these modules of TorchServe import, directly or through another."""
    package = find_spec(_TORCHSERVE)
    if package is None or package.origin is None:
        return set()
    root, seen, found = Path(package.origin).parent.parent, set[Path](), set[str]()
    while waiting:
        parts = waiting.pop().split(".")
        # The name may be that of something in a module.
        files = (root.joinpath(*parts[:end]).with_suffix(".py") for end in (len(parts), len(parts) - 1))
        file = next((file for file in files if file.is_file()), None)
        if file is None or file in seen:
            continue
        seen.add(file)
        names = set(_imported(file.read_text(encoding="utf-8"), file.relative_to(root).parent.parts))
        found |= names
        waiting |= {name for name in names if name.startswith(f"{_TORCHSERVE}.")}
    return found


def _imported(text: str, package: tuple[str, ...]) -> Iterator[str]:
    """The dotted names that a file imports, without those of which it does without."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*parents, *([node.module] if node.module else [])))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Try) and node.handlers:
            waiting += [*node.orelse, *node.finalbody, *(each for each in node.body if not _is_import(each))]
        else:
            # `if find_spec(…)`, `if TYPE_CHECKING`: what is imported there may be missing.
            optional = isinstance(node, ast.If)
            waiting += [each for each in ast.iter_child_nodes(node) if not (optional and _is_import(each))]


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)
