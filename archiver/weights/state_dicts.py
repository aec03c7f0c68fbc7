"""Finds a network's tensors in a file: under a key of a checkpoint, or prefixed with the names of modules that wrapped
it in training."""

from collections import OrderedDict
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marina.archiver.weights.reading import read_weights
from marina.config.errors import SourceError, listed

State = dict[str, torch.Tensor]

# Keys under which trainings usually save the weights, or none, beside those of an optimiser or of an average.
_STATE_KEYS = ("", "state_dict", "model_state_dict", "model")
# Prefixes of Lightning, of DataParallel and averaged models, of `torch.compile`, and common names for the network.
_WRAPPERS = {"_orig_mod", "model", "module", "net", "network"}
_DEEPEST = 2
# Batch norm's step counter, which older files do not have.
_COUNTER = "num_batches_tracked"


def load_weights(where: str, source: str, network: nn.Module, file: Path) -> tuple[str, ...]:
    """Loads the file into the network; returns notes on what was chosen if it holds several. SourceError if nothing
    fits."""
    content = read_weights(where, file)
    if not isinstance(content, dict):
        raise SourceError(f"{where}: `{file}` is not a state dict, allowed: names to tensors")
    key, state, notes = _chosen(where, file, network, content)
    versions = getattr(state, "_metadata", None)
    prefix = _prefix(network, state)
    if prefix:
        if others := [other for other in _prefixes(network, state) if other != prefix]:
            notes += (f"`{file.name}` also holds weights with the prefix {listed(others)}; `{prefix}` is used",)
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    kept_out = _kept_out(network)
    state = {name: value for name, value in state.items() if name not in kept_out}
    state |= {name: state[twin] for name, twin in _shared(network, state.keys()).items()}
    first_names: dict[int, str] = {}
    for name, value in network.state_dict(keep_vars=True).items():
        twin = first_names.setdefault(id(value), name)
        if twin != name and {twin, name} <= state.keys() and not torch.equal(state[name], state[twin]):
            # torch would use one of them, without a word.
            text = f"`{twin}` and `{name}` differ in `{file}`, but are one tensor in `{source}`"
            raise SourceError(f"{where}: {text}", hint="compare the model's code with that of the training")
        # torch would convert them without a word, but such numbers mean something else: levels of a scale, for example.
        is_counter = name.endswith(_COUNTER)
        if name in state and not is_counter and state[name].is_floating_point() != value.is_floating_point():
            kinds = [str(tensor.dtype).removeprefix("torch.") for tensor in (state[name], value)]
            raise SourceError(f"{where}: `{name}` of `{file}` is {kinds[0]}, but {kinds[1]} in `{source}`")
    try:
        network.load_state_dict(_with_versions(network, state, versions, prefix or ""))
    except (RuntimeError, ValueError) as err:
        # torch's message has a line per key; the first few are enough.
        lines = [line.strip() for line in str(err).splitlines()[1:]] or [str(err)]
        shown = "; ".join(line[:200] for line in lines[:3])
        under = f"`{key}` of `{file}`" if key else f"`{file}`"
        is_adapted = any(".lora_" in name for name in state)
        hint = (
            "torch.save(model.merge_and_unload().state_dict(), 'weights.pt'), with the LoRA merged"
            if is_adapted
            else None
        )
        raise SourceError(f"{where}: {under} does not fit `{source}`: {shown}", hint=hint) from err
    return notes


def _with_versions(network: nn.Module, state: State, saved: object, prefix: str) -> State:
    """The state with the versions of the layers that saved it, by which some read older files. A file without them,
    such as of safetensors, counts as saved by the network of now."""
    own = network.state_dict()
    counters = {name: value for name, value in own.items() if name.endswith(_COUNTER)}
    versioned = OrderedDict({**counters, **state})
    versions = {"": own._metadata[""]}  # type: ignore[attr-defined]
    if isinstance(saved, dict):
        of_layers = {name: version for name, version in saved.items() if isinstance(version, dict)}
        versions = {f"{name}.".removeprefix(prefix)[:-1]: version for name, version in of_layers.items()}
    versioned._metadata = versions  # type: ignore[attr-defined]
    return versioned


def _chosen(where: str, file: Path, network: nn.Module, content: dict[Any, Any]) -> tuple[str, State, tuple[str, ...]]:
    """The state dict that fits, with its key and notes; if several fit, the one under a usual key. SourceError lists
    the keys if there is no such state dict."""
    states = dict(_states("", content))
    fitting = [key for key, state in states.items() if _prefix(network, state) is not None]
    candidates = fitting or [key for key in states if key] or list(states)
    usual = [key for key in _STATE_KEYS if key in candidates]
    chosen = candidates if len(candidates) == 1 else usual
    if len(chosen) != 1:
        held = listed(map(str, fitting or content)) or "nothing"
        raise SourceError(
            f"{where}: `{file}` holds {held}, allowed: names to tensors, or one state dict under a key",
            hint="torch.save(torch.load(FILE)['KEY'], NEW-FILE), with the KEY of the weights to serve",
        )
    others = [key for key in fitting if key != chosen[0]]
    used = f"those under `{chosen[0]}`" if chosen[0] else "those under no key"
    note = f"`{file.name}` also holds weights under {listed(others)}; {used} are used"
    return chosen[0], states[chosen[0]], (note,) if others else ()


def _states(path: str, content: dict[Any, Any]) -> Iterator[tuple[str, State]]:
    """Every dictionary of tensors in the content, with its dotted key. Files may hold other values too, such as the
    number of the last epoch."""
    tensors = OrderedDict(
        (key, value) for key, value in content.items() if isinstance(value, torch.Tensor) and isinstance(key, str)
    )
    tensors._metadata = getattr(content, "_metadata", None)  # type: ignore[attr-defined]
    nested = {key: value for key, value in content.items() if isinstance(value, dict) and value}
    if tensors:
        yield path, tensors
    for key, value in nested.items():
        if path.count(".") < _DEEPEST - 1:
            yield from _states(f"{path}.{key}" if path else str(key), value)


def _prefix(network: nn.Module, state: State) -> str | None:
    """The prefix of all the network's tensors in the state; None if some are missing or the prefix is ambiguous."""
    prefixes = _prefixes(network, state)
    usual = [prefix for prefix in prefixes if set(prefix.split(".")[:-1]) <= _WRAPPERS]
    chosen = prefixes if len(prefixes) == 1 and all(name.startswith(prefixes[0]) for name in state) else usual
    return chosen[0] if len(chosen) == 1 else None


def _prefixes(network: nn.Module, state: State) -> list[str]:
    """Every prefix under which the state has exactly the network's tensors."""
    expected = {name for name in network.state_dict() if not name.endswith(_COUNTER)}
    if not expected:
        return [] if state else [""]
    first = min(expected, key=len)
    firsts = [first, *_shared(network, {first})]
    candidates = {
        name.removesuffix(first) for first in firsts for name in state if name == first or name.endswith(f".{first}")
    }
    return sorted(prefix for prefix in candidates if _names_with_shared(network, state, prefix) == expected)


def _names_with_shared(network: nn.Module, state: State, prefix: str) -> set[str]:
    names = _names_under(state, prefix) - _kept_out(network)
    return names | _shared(network, names).keys()


def _kept_out(network: nn.Module) -> set[str]:
    """The network's tensors that a state dict does not have, and TorchScript does."""
    return {name for name, _ in network.named_buffers()} - network.state_dict().keys()


def _shared(network: nn.Module, names: Set[str]) -> dict[str, str]:
    """The network's tensors that are not among the names, but are the same as one that is, by its name: safetensors
    keeps a shared tensor only once."""
    tensors = network.state_dict(keep_vars=True)
    kept = {id(value): name for name, value in tensors.items() if name in names}
    return {name: kept[id(value)] for name, value in tensors.items() if name not in names and id(value) in kept}


def _names_under(state: State, prefix: str) -> set[str]:
    names = (name.removeprefix(prefix) for name in state if name.startswith(prefix))
    return {name for name in names if not name.endswith(_COUNTER)}
