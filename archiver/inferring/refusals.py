"""Refuses arguments that cannot have one row per request, with a hint on how to wrap the model so that they can."""

from collections.abc import Sequence

from torch import nn

from marina.archiver.inferring.arguments import is_state
from marina.config.errors import SourceError


def unservable_arguments(network: nn.Module, names: Sequence[str]) -> SourceError | None:
    """The error about graphs, about states that have the batch second, or about bags of words that are concatenated;
    None if there are no such arguments."""
    if "edge_index" in names:
        text = "`--source`: `forward` takes the edges of one graph, but requests are rows"
        hint = "write a wrapper module that takes a graph per row: nodes of rows x N x features, edges of rows x 2 x E"
        return SourceError(text, hint=hint)
    layers = dict(network.named_modules())
    states = [name for name in names if is_state(name)]
    for layer_name, layer in layers.items():
        if isinstance(layer, nn.RNNBase) and states:
            return _states_refused(network, names, states, layer_name, layer)
        if isinstance(layer, nn.EmbeddingBag) and "offsets" in names:
            text = "`--source`: `forward` takes the concatenated words of all texts, but requests are rows"
            hint = f"write a wrapper module that calls `{layer_name}` with rows of equal length and without `offsets`, "
            return SourceError(text, hint=f"{hint}and set its `padding_idx` to the padding token")
    return None


def _states_refused(
    network: nn.Module, names: Sequence[str], states: list[str], layer_name: str, layer: nn.RNNBase
) -> SourceError:
    parts = ["h", "c"] if isinstance(layer, nn.LSTM) else ["h"]
    one_tuple = len(states) == 1 and len(parts) == 2
    new_states = parts if one_tuple else states
    transposed = ", ".join(f"{name}.transpose(0, 1).contiguous()" for name in new_states)
    called = [name for name in names if name not in states] + [f"({transposed})" if one_tuple else transposed]
    given = ", ".join([name for name in names if name not in states] + new_states)
    shape = f"{layer.num_layers * (2 if layer.bidirectional else 1)} x batch x {layer.hidden_size}"
    what = "a tuple of states" if one_tuple else "states"
    returned = f"return y, {', '.join(f'{name}.transpose(0, 1)' for name in new_states)}"
    unpacked = f"y, ({', '.join(new_states)})" if one_tuple else f"y, {', '.join(new_states)}"
    return SourceError(
        f"`--source`: `forward` takes {what} of `{layer_name}`, {shape}, but requests are rows",
        hint=f"class Rows({type(network).__name__}):\n    def forward(self, {given}):\n"
        f"        {unpacked} = super().forward({', '.join(called)})\n        {returned}",
    )
