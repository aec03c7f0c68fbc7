"""Arguments whose form cannot be a row for each request, and the module around the model that makes it one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from archiver.inferring.arguments import is_state
from config.errors import SourceError


def unservable_arguments(network: nn.Module, names: Sequence[str]) -> SourceError | None:
    """States as recurrent layers keep them, and bags of words that lie one after the other."""
    layers = dict(network.named_modules())
    states = [name for name in names if is_state(name)]
    for layer_name, layer in layers.items():
        if isinstance(layer, nn.RNNBase) and states:
            return _batch_second(network, names, states, layer_name, layer)
        if isinstance(layer, nn.EmbeddingBag) and "offsets" in names:
            text = "`--source`: `forward` takes the words of all texts one after the other, but requests are rows"
            hint = f"a module around it that calls `{layer_name}` with rows of equal length and without `offsets`, "
            return SourceError(text, hint=f"{hint}`padding_idx` for what is filled in")
    return None


def _batch_second(
    network: nn.Module, names: Sequence[str], states: list[str], layer_name: str, layer: nn.RNNBase
) -> SourceError:
    parts = ["h", "c"] if isinstance(layer, nn.LSTM) else ["h"]
    one_tuple = len(states) == 1 and len(parts) == 2
    kept = parts if one_tuple else states
    turned = ", ".join(f"{name}.transpose(0, 1).contiguous()" for name in kept)
    called = [name for name in names if name not in states] + [f"({turned})" if one_tuple else turned]
    given = ", ".join([name for name in names if name not in states] + kept)
    shape = f"{layer.num_layers * (2 if layer.bidirectional else 1)} x batch x {layer.hidden_size}"
    what = "a tuple of states" if one_tuple else "states"
    back = f"return y, {', '.join(f'{name}.transpose(0, 1)' for name in kept)}"
    unpacked = f"y, ({', '.join(kept)})" if one_tuple else f"y, {', '.join(kept)}"
    return SourceError(
        f"`--source`: `forward` takes {what} of `{layer_name}`, {shape}, but requests are rows",
        hint=f"class Rows({type(network).__name__}):\n    def forward(self, {given}):\n"
        f"        {unpacked} = super().forward({', '.join(called)})\n        {back}",
    )
