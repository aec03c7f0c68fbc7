"""The code that runs inside a TorchServe worker. This folder is copied into every MAR on its own, so it imports only
the standard library and the packages that a pod has (`serve` in pyproject.toml). Public names are loaded on first
use."""

from importlib import import_module
from typing import Any

_ERRORS = ("RequestError", "Malformed", "NotAcceptable", "TooLarge", "Unsupported", "Unprocessable")
_HOMES = {
    "EncoderHandler": "encoder",
    "Handler": "base",
    "ImageHandler": "image",
    "TensorHandler": "tensor",
    "TextHandler": "generation.handler",
}
_HOMES |= dict.fromkeys(("Answer", "Form", "Request"), "request") | dict.fromkeys(_ERRORS, "validation")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `handlers` has no attribute `{name}`")
    return getattr(import_module(f"marina.handlers.{_HOMES[name]}"), name)
