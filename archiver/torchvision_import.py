"""Importing torchvision beside a torch that its C++ operators were not built for."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

import torch

from config.errors import SourceError

# Kept alive: the schemas vanish with the library object that defined them.
_defined: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """torchvision, with the schemas of detection operators defined when its binaries do not load.

    A CUDA build of torchvision beside a CPU build of torch cannot load them, and its import fails where it only
    registers shape functions for them. Models and weights need none, so a schema without a kernel is enough: calling
    such an operator still fails, and says so.
    """
    for _ in range(8):
        try:
            return importlib.import_module("torchvision")
        except ImportError as err:
            raise SourceError(f"torchvision cannot be imported: {err}", hint="make setup") from err
        except RuntimeError as err:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(err))
            if missing is None:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            library.define(f"{missing[1]}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
            _defined.append(library)
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    raise SourceError("torchvision does not fit the installed torch", hint="make setup")
