"""Makes torchvision importable beside a torch that its C++ operators were not built for.

A CUDA build of torchvision cannot load its binaries beside a CPU build of torch, and then its import fails at the shape
functions that it registers for their operators. Models and weights need no such operator, so a schema without a kernel
is enough: calling one still fails with an error that says so.

The programs that run a user's code call `install`, so that his own `import torchvision` is prepared, too; so do the
workers of archives that were made for TorchServe, whose handlers import it."""

from __future__ import annotations

import importlib.util
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# References that keep the library objects alive: their schemas vanish with them.
_defined: list[object] = []


def prepare_torchvision() -> None:
    """Defines the missing schemas before torchvision is imported, by us or by someone else: `transformers` does so with
    every image model, and thereby with its lists of models. Does nothing if the binaries load or torchvision is not
    installed."""
    module_spec = importlib.util.find_spec("torchvision")
    if module_spec is None or module_spec.origin is None or "torchvision" in sys.modules or _defined:
        return
    import re
    from pathlib import Path

    import torch

    folder = Path(module_spec.origin).parent
    try:
        for binary in folder.glob("_C*.so"):
            torch.ops.load_library(binary)  # type: ignore[no-untyped-call]
    except OSError:
        # torchvision registers shape functions for these operators whether or not they exist.
        registered = (folder / "_meta_registrations.py").read_text(encoding="utf-8")
        for operator in re.findall(r'register_fake\("torchvision::(\w+)"\)', registered):
            library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
            _defined.append(library)


class Finder:
    """An import hook that finds nothing, but defines the schemas when torchvision is first imported."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            prepare_torchvision()
        return None


def install() -> None:
    """Installs the import hook, once per process."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
