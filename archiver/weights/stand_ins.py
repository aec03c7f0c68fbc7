"""Reads what `torch.save` wrote without running any of it: tensors and plain values are made, and an object of any
other class becomes a stand-in that holds what the file says about it.

So the weights of a pickled module, of a checkpoint with a training's settings and of TorchScript can be read without
the code that they name, and without trusting the file."""

import pickle
import re
import sys
import tempfile
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch._weights_only_unpickler import _get_allowed_globals

# What makes a file TorchScript to torch, which would then compile and run what is in it.
_SCRIPT_MARK = "/constants.pkl"
# How the source in a TorchScript file names a module's tensors, of which its other attributes are no weights.
_SCRIPTED = re.compile(
    r"^class (\w+)\(Module\):\n  __parameters__ = \[(.*?)\]\n(?:  __buffers__ = \[(.*?)\]\n)?", re.MULTILINE
)


class StandIn(dict[Any, Any]):
    """An object of a class that is not imported: its items, if it is a mapping, and its state."""

    name: ClassVar[str] = ""
    """The class that the file names, with its module."""
    state: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, *_: Any, **__: Any) -> "StandIn":
        """What calling it would have returned: a method of its class that the file names, for example."""
        return StandIn()

    # Sequences and sets are filled by these.
    def append(self, _: Any) -> None:
        """Leaves the value out."""

    add = append
    __hash__ = object.__hash__  # type: ignore[assignment]


class Unpickler(pickle._Unpickler):
    """Calls nothing but what torch allows in files of weights, which makes tensors of numbers, and stand-ins."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        full = f"{IMPORT_MAPPING.get(module, module)}.{name}"
        return _get_allowed_globals().get(full) or type(name, (StandIn,), {"name": full})

    def load_build(self) -> None:
        """Keeps an object's state, where Python's unpickler would call its `__setstate__` or set its attributes."""
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        state = stack.pop()
        made = stack[-1]
        if isinstance(made, StandIn):
            made.state = state
        elif type(made) is OrderedDict and isinstance(state, dict):
            made.__dict__.update(state)  # the versions of layers

    dispatch[pickle.BUILD[0]] = load_build


def load(file: Any, **how: Any) -> Any:
    """What `pickle.load` is, by these rules; torch takes this module in the place of `pickle`."""
    return Unpickler(file, **how).load()


def read_stand_ins(file: Path) -> Any:
    """The content of a file that torch's own reader of weights refuses, with every module as its state dict."""
    content = torch.load(file, map_location="cpu", pickle_module=sys.modules[__name__], weights_only=False)
    return _with_states(content)


def read_scripted(file: Path) -> OrderedDict[str, torch.Tensor]:
    """The state dict of a TorchScript file, whose program is neither compiled nor run."""
    with zipfile.ZipFile(file) as scripted, tempfile.NamedTemporaryFile(suffix=".pt") as plain:
        with zipfile.ZipFile(plain, "w") as copy:
            for name in scripted.namelist():
                if not name.endswith((_SCRIPT_MARK, ".debug_pkl")):
                    copy.writestr(name, scripted.read(name))
        plain.flush()
        # torch decides by that mark alone, and must not take the copy for a program again.
        content = torch.load(plain.name, map_location="cpu", pickle_module=sys.modules[__name__], weights_only=False)
        named = {}
        for member in (name for name in scripted.namelist() if "/code/" in name and name.endswith(".py")):
            module = member.partition("/code/")[2].removesuffix(".py").replace("/", ".")
            for name, *lists in _SCRIPTED.findall(scripted.read(member).decode()):
                named[f"{module}.{name}"] = re.findall(r'"(.*?)"', " ".join(lists))
    return OrderedDict(_scripted_state(content, named))


def _scripted_state(module: StandIn, named: dict[str, list[str]], prefix: str = "") -> Iterator[tuple[str, Any]]:
    attributes = module.state if isinstance(module.state, dict) else {}
    for name in named.get(module.name, ()):
        yield f"{prefix}{name}", attributes.get(name)
    for name, child in attributes.items():
        if isinstance(child, StandIn):
            yield from _scripted_state(child, named, f"{prefix}{name}.")


def _with_states(value: Any) -> Any:
    """The value, in which each module is replaced by its state dict."""
    if is_module(value):
        return OrderedDict(_state(value))
    if not isinstance(value, dict):
        return value
    replaced = OrderedDict((name, _with_states(part)) for name, part in value.items())
    replaced._metadata = getattr(value, "_metadata", None)  # type: ignore[attr-defined]
    return replaced


def is_module(value: Any) -> bool:
    state = value.state if isinstance(value, StandIn) else None
    return isinstance(state, dict) and {"_parameters", "_buffers", "_modules"} <= state.keys()


def _state(module: StandIn, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    kept_out = module.state.get("_non_persistent_buffers_set") or ()
    for name, value in (*module.state["_parameters"].items(), *module.state["_buffers"].items()):
        if isinstance(value, torch.Tensor) and name not in kept_out:
            yield f"{prefix}{name}", value
    for name, child in module.state["_modules"].items():
        if is_module(child):
            yield from _state(child, f"{prefix}{name}.")
