"""A decoder of Llama's kind in torch: Llama, Mistral, Qwen2 and Qwen3, from `config.json` and safetensors.

Each layer has one block for the keys of all slots and one for the values, allocated once. A step writes into them in
place, and reads the part that is filled."""

from pathlib import Path

import torch
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu

from marina.handlers.generation.engines.weights import LayerWeights, Weights, rotary_tables

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Llama:
    """The network with room for `slots` sequences of `context` tokens."""

    def __init__(self, folder: Path, *, precision: str, slots: int, context: int) -> None:
        weights = Weights(folder, DTYPES[precision])
        self.shape = shape = weights.shape
        self._embedding, self._norm = weights.embedding, weights.norm
        head = weights.head
        self._head = self._embedding if head is None else head
        self._layers = [weights.layer(index) for index in range(shape.layers)]
        sides = (slots, shape.kv_heads, context, shape.head_size)
        self._keys = [torch.zeros(sides, dtype=DTYPES[precision]) for _ in self._layers]
        self._values = [torch.zeros(sides, dtype=DTYPES[precision]) for _ in self._layers]
        self._rotary = rotary_tables(shape, context)
        self._steps = torch.arange(context)

    @property
    def vocabulary(self) -> int:
        return int(self._head.shape[0])

    @torch.inference_mode()
    def read(self, slot: int, start: int, tokens: torch.Tensor) -> torch.Tensor:
        """Reads a piece of a prompt into a slot; returns the scores after its last token."""
        return self._scores(self._read(slot, start, tokens)[-1:])[0]

    @torch.inference_mode()
    def read_all(self, slot: int, start: int, tokens: torch.Tensor) -> torch.Tensor:
        """Reads a piece of a prompt into a slot; returns the scores after each token, a row each."""
        return self._scores(self._read(slot, start, tokens))

    @torch.inference_mode()
    def read_whole(self, tokens: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Reads a text, or its piece from `start` on, into the first slot; returns the scores after each token, a row
        each."""
        return self.read_all(0, start, tokens)

    def _read(self, slot: int, start: int, tokens: torch.Tensor) -> torch.Tensor:
        end = start + len(tokens)
        mask = self._steps[:end] <= self._steps[start:end, None]
        hidden = embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, hidden, self._steps[start:end])
            self._keys[index][slot, :, start:end] = key.transpose(0, 1)
            self._values[index][slot, :, start:end] = value.transpose(0, 1)
            attended = scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                self._keys[index][slot : slot + 1, :, :end],
                self._values[index][slot : slot + 1, :, :end],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = self._finish(layer, hidden, attended[0].transpose(0, 1))
        return hidden

    @torch.inference_mode()
    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Computes one token of each of these slots, at its position; returns the scores after it, a row per slot."""
        end = int(positions.max()) + 1
        mask = (self._steps[:end] <= positions[:, None])[:, None, None]
        hidden = embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, hidden, positions)
            self._keys[index][slots, :, positions] = key
            self._values[index][slots, :, positions] = value
            attended = scaled_dot_product_attention(
                query[:, :, None],
                self._keys[index][:, :, :end][slots],
                self._values[index][:, :, :end][slots],
                attn_mask=mask,
                enable_gqa=True,
            )
            hidden = self._finish(layer, hidden, attended[:, :, 0])
        return self._scores(hidden)

    @torch.inference_mode()
    def copy(self, source: int, target: int, count: int) -> None:
        """Copies the first `count` tokens of one slot into another."""
        for cache in (*self._keys, *self._values):
            cache[target, :, :count] = cache[source, :, :count]

    def _project(
        self, layer: LayerWeights, hidden: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of tokens, turned by their positions: (tokens, heads, head_size)."""
        shape = self.shape
        normed = rms_norm(hidden, hidden.shape[-1:], layer.before_attention, shape.norm_eps)
        mixed = linear(normed, layer.query_key_value, layer.bias).view(len(hidden), -1, shape.head_size)
        query, key, value = torch.split(mixed, [shape.heads, shape.kv_heads, shape.kv_heads], 1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, query.shape[-1:], layer.query_norm, shape.norm_eps)
            key = rms_norm(key, key.shape[-1:], layer.key_norm, shape.norm_eps)
        return self._turn(query, positions), self._turn(key, positions), value

    def _turn(self, vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = (table[positions, None].to(vectors.dtype) for table in self._rotary)
        left, right = vectors.chunk(2, -1)
        return vectors * cosine + torch.cat((-right, left), -1) * sine

    def _finish(self, layer: LayerWeights, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = hidden + linear(attended.flatten(1), layer.output)
        normed = rms_norm(hidden, hidden.shape[-1:], layer.before_mlp, self.shape.norm_eps)
        gate, up = linear(normed, layer.gate_up).chunk(2, -1)
        return hidden + linear(silu(gate) * up, layer.down)

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = rms_norm(hidden, hidden.shape[-1:], self._norm, self.shape.norm_eps)
        return linear(normed, self._head).float()
