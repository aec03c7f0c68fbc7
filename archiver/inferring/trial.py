"""One run of a network on made-up inputs, and how far each of them came."""

from __future__ import annotations

import importlib
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from archiver.inferring.layer_inputs import KNOWN, layer_width
from handlers.networks import keyword_only, without_dataclasses

_LONGEST_S = 20.0
# What changes the values of an input and leaves it what it is.
_SAME = {"_to_copy", "add", "clone", "div", "mul", "sub"}


@dataclass(frozen=True)
class LayerArrival:
    """An input as it is when it reaches a layer."""

    argument: int
    layer: nn.Module
    shape: tuple[int, ...]
    offset: int


@dataclass
class TrialResult:
    """What came of a run."""

    outputs: tuple[torch.Tensor, ...] | None = None
    answered: bool = False
    """Whether there was an answer, if not one that can be served."""
    names: tuple[str, ...] | None = None
    error: str = ""
    touches: list[LayerArrival] = field(default_factory=list)
    second: set[str] = field(default_factory=set)
    """Layers that take the batch as their second dimension and got it as their first."""
    widths: list[tuple[int, int]] = field(default_factory=list)
    """Of each layer whose input has another width than it takes: what came, what it takes."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(value.shape[1:]) for value in self.outputs or ())


def run(
    network: nn.Module, values: Sequence[torch.Tensor], *, longest_s: float = _LONGEST_S, follow: bool = False
) -> TrialResult:
    """The outputs, where each has a row for each row of the inputs and holds numbers; what went wrong otherwise. To
    follow the inputs takes the shortcuts away that some layers have."""
    ran = TrialResult()
    if follow:
        # Following imports it, and nothing may end that half-way.
        importlib.import_module("torch._dynamo")
    following = _followed(network, ran, values) if follow else nullcontext()
    try:
        with torch.no_grad(), _silent(), _ended_after(longest_s), following:
            named = keyword_only(network)
            ordered = len(values) - len(named)
            answer = network(*values[:ordered], **dict(zip(named, values[ordered:], strict=True)))
            all_paths, _ = pytree.tree_flatten_with_path(without_dataclasses(answer))
            paths = [(path, leaf) for path, leaf in all_paths if leaf is not None]
    except Exception as err:
        first = next((line.strip() for line in str(err).splitlines() if line.strip()), "")
        ran.error = f"{type(err).__name__}: {first[:200]}"
        return ran
    ran.answered = True
    rows, leaves = values[0].shape[0], [leaf for _, leaf in paths]
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0 or leaf.shape[0] != rows:
            shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            ran.error = f"an output is {shape} for {rows} rows, allowed: tensors with a row each"
        elif leaf.is_floating_point() and not leaf.isfinite().all():
            ran.error = "an output is not a finite number"
    if not ran.error:
        ran.outputs, ran.names = tuple(leaves), _names([path for path, _ in paths])
    return ran


def _names(paths: list[tuple[Any, ...]]) -> tuple[str, ...] | None:
    """The keys of a dictionary, or the fields of a named tuple; None for other outputs."""
    keys = [path[0] if len(path) == 1 else None for path in paths]
    names = tuple(str(getattr(key, "key", getattr(key, "name", ""))) for key in keys)
    return names if all(name.isidentifier() for name in names) else None


def equal(left: tuple[torch.Tensor, ...], right: tuple[torch.Tensor, ...]) -> bool:
    """Whether outputs are the same but for rounding."""
    return len(left) == len(right) and all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4)
        for a, b in zip(left, right, strict=True)
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Hides what a model prints, and its warnings."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _ended_after(longest_s: float) -> Iterator[None]:
    """Ends a model's loop that would never end on made-up numbers."""

    def ends(*_: object) -> None:
        raise TimeoutError(f"no answer within {longest_s:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ends)
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _followed(network: nn.Module, ran: TrialResult, values: Sequence[torch.Tensor]) -> Iterator[None]:
    follow, rows = _Follow(values), len(values[0])
    names = {layer: name for name, layer in network.named_modules()}

    def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = next((argued for argued in (*args, *kwargs.values()) if isinstance(argued, torch.Tensor)), None)
        if value is None:
            return
        argument, width = follow.argument_of(value), layer_width(layer)
        if argument is not None:
            ran.touches.append(LayerArrival(argument, layer, tuple(value.shape), int(value.storage_offset())))
        if not getattr(layer, "batch_first", True) and value.ndim == 3 and len(value) == rows:
            ran.second.add(names[layer])
        if width is not None and value.ndim and value.shape[-1] != width:
            ran.widths.append((value.shape[-1], width))

    hooks = [
        layer.register_forward_pre_hook(before, with_kwargs=True)
        for layer in network.modules()
        if isinstance(layer, KNOWN)
    ]
    try:
        with follow:
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _Follow(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows an input again behind a view, a cast or a scaling."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {_place(value): at for at, value in enumerate(values)}
        self._alive: list[torch.Tensor] = []

    def argument_of(self, value: torch.Tensor) -> int | None:
        return self._known.get(_place(value)) if value.numel() else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and func._schema.name.partition("::")[2] in _SAME:
            for value in args:
                if isinstance(value, torch.Tensor) and value.shape == made.shape:
                    argument = self.argument_of(value)
                    if argument is not None:
                        self._known.setdefault(_place(made), argument)
                        # Kept, so that no other tensor gets its place.
                        self._alive.append(made)
        return made


def _place(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()
