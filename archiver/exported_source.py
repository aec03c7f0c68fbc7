"""Reads a program that torch exported, and makes it a network of its tensors, however its arguments were nested."""

import functools
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from marina.config.errors import SourceError


def read_program(where: str, file: Path) -> ExportedProgram:
    """Loads a `.pt2` file."""
    if not file.is_file():
        raise SourceError(f"{where}: no such file: `{file}`")
    hidden = _Hidden()
    log = logging.getLogger("torch.export")
    log.addFilter(hidden)
    try:
        return _load(file.resolve(), file.stat().st_mtime_ns)
    except Exception as err:
        # Of files of another kind, torch says why in its log, and then that one should read the log.
        text = hidden.reason or ("it holds none" if "warnings above" in str(err) else str(err))
        reason = next(iter(text.splitlines()), type(err).__name__).partition(". ")[0]
        raise SourceError(
            f"{where}: `{file}` is not an exported program: {reason}",
            hint="torch.export.save(torch.export.export(model, example), 'program.pt2')",
        ) from err
    finally:
        log.removeFilter(hidden)


class _Hidden(logging.Filter):
    """Keeps what torch logs from the terminal, and the error in it."""

    reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            self.reason = str(record.exc_info[1])
        return False


@functools.lru_cache(maxsize=1)
def _load(file: Path, _changed_ns: int) -> ExportedProgram:
    """Keeps the last program, because `init` looks at it several times, and reading a large file takes long."""
    return torch.export.load(file)


def input_values(where: str, program: ExportedProgram) -> dict[str, torch.Tensor]:
    """The tensors that the program takes, by name, as they were exported. SourceError if no request can hold one."""
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    values = {name: nodes[name] for name in program.graph_signature.user_inputs if isinstance(name, str)}
    for name, value in values.items():
        if value.is_complex():
            text = f"{where}: the program takes `{name}` of complex numbers, allowed: real ones"
            raise SourceError(text, hint="export a model that makes them with `torch.view_as_complex(…)`")
    return values


def notes_on_inputs(program: ExportedProgram) -> tuple[str, ...]:
    """A note for each input that changes no answer. Torch takes two inputs for one if both are the same tensor."""
    inputs = program.graph_signature.user_inputs
    return tuple(
        f"the program ignores `{node.name}`: if its model does not, it was exported with one tensor for two inputs: "
        "export it again with different ones"
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in inputs and not node.users
    )


def program_network(program: ExportedProgram) -> nn.Module:
    """The network of a program, which takes its tensors in order. It stays in the mode in which it was exported; only
    this form of it can be called and exported again."""
    network, inputs = program.module(), program.graph_signature.user_inputs
    as_exported = program.call_spec.in_spec
    flat = pytree.tree_structure((tuple(inputs), {}))
    if flat == as_exported and all(isinstance(name, str) for name in inputs):
        return network
    return _FlatProgram(network, as_exported, inputs)


class _FlatProgram(nn.Module):
    """A program that was exported with keywords, nested arguments or constants, called with its tensors only."""

    def __init__(self, network: nn.Module, as_exported: pytree.TreeSpec, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self.network = network
        self.as_exported = as_exported
        self.constants = [None if isinstance(value, str) else value for value in inputs]
        self.is_tensor = [isinstance(value, str) for value in inputs]

    def forward(self, *tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        pairs = zip(self.is_tensor, self.constants, strict=True)
        leaves = [next(given) if is_tensor else constant for is_tensor, constant in pairs]
        arguments, keywords = pytree.tree_unflatten(leaves, self.as_exported)
        return self.network(*arguments, **keywords)
