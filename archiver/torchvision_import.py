"""Imports torchvision, for whom its models and weights are needed."""

from __future__ import annotations

import importlib

from marina.handlers.torchvision_import import prepare_torchvision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def import_torchvision() -> ModuleType:
    """Imports torchvision, whether or not its binaries load; SourceError if it cannot be imported even so."""
    from marina.config.distribution import install_command
    from marina.config.errors import SourceError

    prepare_torchvision()
    try:
        return importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as err:
        raise SourceError(f"torchvision cannot be imported: {err}", hint=install_command("serve,package")) from err
