"""What the modules of an archive import that a pod does not have.

Most archives bring no requirements, because the image of their server had their libraries."""

import sys
from importlib.util import find_spec
from pathlib import Path

from marina.archiver.adopting.foreign import ForeignArchive
from marina.archiver.import_names import needed_imports
from marina.archiver.rehearse import hidden_modules

_TORCHSERVE = "ts"


def missing_in_pod(foreign: ForeignArchive) -> list[str]:
    """The top-level modules that are imported and that a pod lacks, sorted; those whose import may fail do not count,
    and those that TorchServe's own handlers import do."""
    own = {Path(name).parts[0].removesuffix(".py") for name in foreign.sizes}
    names: set[str] = set()
    for name, text in foreign.sources.items():
        names.update(needed_imports(text, Path(name).parent.parts))
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
        names = set(needed_imports(file.read_text(encoding="utf-8"), file.relative_to(root).parent.parts))
        found |= names
        waiting |= {name for name in names if name.startswith(f"{_TORCHSERVE}.")}
    return found
