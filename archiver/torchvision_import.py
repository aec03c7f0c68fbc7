"""Importing torchvision beside a torch that its C++ operators were not built for.

`make setup` has every Python of the environment load this module: it imports next to nothing before torchvision is.
"""

from __future__ import annotations

import importlib.util
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# Kept alive: the schemas vanish with the library object that defined them.
_defined: list[object] = []


def prepare_torchvision() -> None:
    """The same for whatever imports torchvision on its own: `transformers` does with every image model, and so with its
    lists of models. Nothing happens where the binaries load, or where there is no torchvision."""
    module_spec = importlib.util.find_spec("torchvision")
    if module_spec is None or module_spec.origin is None or "torchvision" in sys.modules or _defined:
        return
    import re
    from pathlib import Path

    import torch

    for binary in Path(module_spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(binary)  # type: ignore[no-untyped-call]
        except OSError:
            # Those that it registers shape functions for whether or not they are there.
            registered = Path(module_spec.origin).with_name("_meta_registrations.py").read_text(encoding="utf-8")
            for operator in re.findall(r'register_fake\("torchvision::(\w+)"\)', registered):
                _define(operator)


def _define(operator: str) -> None:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _defined.append(library)


def import_torchvision() -> ModuleType:
    """torchvision, with the schemas of detection operators defined when its binaries do not load.

    A CUDA build of torchvision beside a CPU build of torch cannot load them, and its import fails where it only
    registers shape functions for them. Models and weights need none, so a schema without a kernel is enough: calling
    such an operator still fails, and says so.
    """
    import re

    from config.errors import SourceError

    hint = "make setup, or without the repository pip install 'marina[serve,package]'"
    for _ in range(8):
        try:
            return importlib.import_module("torchvision")
        except ImportError as err:
            raise SourceError(f"torchvision cannot be imported: {err}", hint=hint) from err
        except RuntimeError as err:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(err))
            if missing is None:
                raise
            _define(missing[1])
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise SourceError("torchvision does not fit the installed torch", hint=hint)


class Finder:
    """Finds nothing, and is asked first: what `make setup` has Python load at its start, so that whoever imports
    torchvision finds the schemas defined. Costs nothing until then."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            prepare_torchvision()
        return None


def install() -> None:
    """Once a process."""
    sys.meta_path.insert(0, Finder())
