"""Runs a network on made-up inputs, and tracks each of them to the layers that it reaches."""

import importlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from marina.archiver.inferring.inferred import Input
from marina.archiver.inferring.layer_inputs import KNOWN, layer_width
from marina.archiver.rows import close
from marina.handlers.networks import keyword_only, without_dataclasses

_LONGEST_S = 20.0
# Larger whole numbers are not tried one after another: tables have fewer rows, and a model that makes as much as its
# input says would fill the memory.
MOST_TRIED = 2**24
# Operators whose result still counts as the input itself.
_TRANSPARENT = {"_to_copy", "add", "clone", "div", "mul", "sub"}


@dataclass(frozen=True)
class LayerArrival:
    """The arrival of an input at a layer, with its shape and storage offset there."""

    argument: int
    layer: nn.Module
    shape: tuple[int, ...]
    offset: int


@dataclass
class TrialResult:
    outputs: tuple[torch.Tensor, ...] | None = None
    """None if the run failed, or if the outputs cannot be served."""
    answered: bool = False
    """Whether `forward` returned, even if its outputs cannot be served."""
    names: tuple[str, ...] | None = None
    error: str = ""
    arrivals: list[LayerArrival] = field(default_factory=list)
    batch_second: set[str] = field(default_factory=set)
    """The names of layers that expect the batch as second dimension but got it as the first."""
    mismatches: list[tuple[int, int]] = field(default_factory=list)
    """The actual and the expected width, for each layer whose input has the wrong width."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the outputs, without the batch dimension."""
        return tuple(tuple(value.shape[1:]) for value in self.outputs or ())


def try_inputs(
    network: nn.Module, values: Sequence[torch.Tensor], *, longest_s: float = _LONGEST_S, track: bool = False
) -> TrialResult:
    """Runs the network on these values. With `track`, the inputs are tracked to its layers, which disables the fast
    path that some layers have."""
    result = TrialResult()
    if track:
        # Tracking imports it; imported here, the time limit cannot interrupt the import half-way.
        importlib.import_module("torch._dynamo")
    tracking = _tracked(network, result, values) if track else nullcontext()
    try:
        with torch.no_grad(), _silenced(), _time_limit(longest_s), tracking:
            named = keyword_only(network)
            ordered = len(values) - len(named)
            answer = network(*values[:ordered], **dict(zip(named, values[ordered:], strict=True)))
            paths = _paths(answer)
    except Exception as err:
        first = next((line.strip() for line in str(err).splitlines() if line.strip()), "")
        result.error = f"{type(err).__name__}: {first[:200]}"
        return result
    result.answered = True
    rows, leaves = values[0].shape[0], [leaf for _, leaf in paths]
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0 or leaf.shape[0] != rows:
            shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            result.error = f"an output is {shape} for {rows} rows, allowed: tensors with one row per input row"
        elif leaf.is_floating_point() and not leaf.isfinite().all():
            result.error = "an output is not a finite number"
    if not result.error:
        result.outputs, result.names = tuple(leaves), output_names(answer)
    return result


def limit_numbers(network: nn.Module, values: Sequence[torch.Tensor], at: int, tensor: Input) -> Input:
    """An input of whole numbers, limited to those that the network takes there, beside the other values."""

    def works(number: int) -> bool:
        tried = [*values[:at], torch.full_like(values[at], number), *values[at + 1 :]]
        return try_inputs(network, tried).outputs is not None

    ends = torch.iinfo(values[at].dtype)
    if tensor.most is None and works(ends.max):
        return tensor if works(-1) and works(ends.min) else replace(tensor, least=tensor.least or 0)
    known = MOST_TRIED if tensor.most is None else tensor.most
    return replace(tensor, least=tensor.least or 0, most=largest_working(works, known))


def largest_working(works: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that works, if all smaller ones do."""
    low, high, middle = 0, most, most
    while low < high:
        low, high = (middle, high) if works(middle) else (low, middle - 1)
        middle = (low + high + 1) // 2
    return low


def _paths(answer: object) -> list[tuple[Any, Any]]:
    """The outputs, each with the path to it."""
    paths, _ = pytree.tree_flatten_with_path(without_dataclasses(answer))
    return [(path, leaf) for path, leaf in paths if leaf is not None]


def output_names(answer: object) -> tuple[str, ...] | None:
    """The keys if the outputs are a dictionary, the fields if they are a named tuple; None otherwise."""
    keys = [path[0] if len(path) == 1 else None for path, _ in _paths(answer)]
    names = tuple(str(getattr(key, "key", getattr(key, "name", ""))) for key in keys)
    return names if all(name.isidentifier() for name in names) else None


def equal(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    """Whether outputs are equal up to rounding."""
    return len(left) == len(right) and all(
        a.shape == b.shape and close(a.to(torch.cdouble), b.to(torch.cdouble)) for a, b in zip(left, right, strict=True)
    )


@contextmanager
def _silenced() -> Iterator[None]:
    """Hides what a model prints, and its warnings."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _time_limit(longest_s: float) -> Iterator[None]:
    """Interrupts a model whose loop might never end on made-up numbers. Only the main thread can be interrupted."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"no answer within {longest_s:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _tracked(network: nn.Module, result: TrialResult, values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within this context, records in `result` what reaches the network's layers."""
    tracker, rows = _InputTracker(values), len(values[0])
    names = {layer: name for name, layer in network.named_modules()}

    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
        if value is None:
            return
        argument, width = tracker.argument_of(value), layer_width(layer)
        if argument is not None:
            result.arrivals.append(LayerArrival(argument, layer, tuple(value.shape), int(value.storage_offset())))
        if not getattr(layer, "batch_first", True) and value.ndim == 3 and len(value) == rows:
            result.batch_second.add(names[layer])
        if width is not None and value.ndim and value.shape[-1] != width:
            result.mismatches.append((value.shape[-1], width))

    hooks = [
        layer.register_forward_pre_hook(record, with_kwargs=True)
        for layer in network.modules()
        if isinstance(layer, KNOWN)
    ]
    try:
        with tracker:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _InputTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recognises an input after a view, a cast or a scaling."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = {_storage(value): at for at, value in enumerate(values)}
        self._alive: list[torch.Tensor] = []

    def argument_of(self, value: torch.Tensor) -> int | None:
        return self._arguments.get(_storage(value)) if value.numel() else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and func._schema.name.partition("::")[2] in _TRANSPARENT:
            for value in args:
                if isinstance(value, torch.Tensor) and value.shape == output.shape:
                    argument = self.argument_of(value)
                    if argument is not None:
                        self._arguments.setdefault(_storage(output), argument)
                        # Kept alive, so that no other tensor gets the same storage address.
                        self._alive.append(output)
        return output


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
