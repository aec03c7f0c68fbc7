"""Loads a folder by `transformers`, without a network, without code from the folder, and with nothing unpickled but
tensors. Only the packaging machine has that library."""

import importlib
from pathlib import Path
from typing import Any

import torch

from marina.archiver.quantize import silence_torchao
from marina.config.distribution import install_command
from marina.config.errors import SourceError, ToolMissing
from marina.config.hf_folder import pickled_weights
from marina.config.spec import Spec
from marina.handlers.torchvision_import import prepare_torchvision


def import_library(name: str, hint: str) -> Any:
    """A library of whoever packages. Raises ToolMissing if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise ToolMissing(f"`{name}` is not installed", hint=hint) from err


def import_transformers() -> Any:
    """`transformers`, which keeps quiet."""
    prepare_torchvision()
    silence_torchao()
    transformers = import_library("transformers", install_command("serve,package"))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def load_pretrained(spec: Spec, folder: Path, kind: str) -> tuple[Any, dict[str, Any]]:
    """The network of a folder in fp32, by this class of `transformers`, and what of its weights is missing or does not
    fit: these values are random numbers."""
    transformers = import_transformers()
    try:
        network, loaded = getattr(transformers, kind).from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=pickled_weights(folder) is None,
            weights_only=True,
            output_loading_info=True,
            # Else the error does not say which: the report that it refers to is not shown.
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
    except Exception as err:
        raise cannot_be_loaded(spec, err) from err
    return network, loaded


def cannot_be_loaded(spec: Spec, err: Exception) -> SourceError:
    """The error for a folder that a library refuses, with the first line of what that says."""
    first = next((line for line in str(err).splitlines() if line.strip()), type(err).__name__)
    return SourceError(f"{spec.file}: `model.source`: `{spec.model.source}` cannot be loaded: {first}")
