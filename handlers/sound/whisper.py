"""Whisper: a log-mel spectrogram of 30 seconds in, the likeliest tokens out, one after another.

Modules have the names of their weights in `transformers`, whose greedy `generate` this follows to the token."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

Cache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class WhisperConfig:
    """The sizes of a Whisper model, as its `config.json` names them."""

    d_model: int
    num_mel_bins: int
    vocab_size: int
    encoder_layers: int
    encoder_attention_heads: int
    decoder_layers: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    max_source_positions: int
    max_target_positions: int


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens of a Whisper model mean."""

    start: int
    end: int
    transcribe: int | None
    translate: int | None
    no_timestamps: int | None
    languages: Mapping[str, int]
    """The token of each language by its code; none for a model that knows only one."""
    suppressed: Sequence[int] = ()
    """Tokens that are never written."""
    suppressed_first: Sequence[int] = ()
    """Tokens that are not written first."""


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(3))
        self.k_proj = nn.Linear(width, width, bias=False)

    def memory(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the states that are attended to."""
        return self._split(self.k_proj(states)), self._split(self.v_proj(states))

    def forward(self, states: torch.Tensor, memory: tuple[torch.Tensor, torch.Tensor], *, causal: bool) -> torch.Tensor:
        attended = scaled_dot_product_attention(self._split(self.q_proj(states)), *memory, is_causal=causal)
        result: torch.Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return result

    def _split(self, values: torch.Tensor) -> torch.Tensor:
        rows, count, _ = values.shape
        return values.view(rows, count, self.heads, -1).transpose(1, 2)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, *, crosses: bool) -> None:
        super().__init__()
        self.self_attn, self.self_attn_layer_norm = _Attention(width, heads), nn.LayerNorm(width)
        if crosses:
            self.encoder_attn, self.encoder_attn_layer_norm = _Attention(width, heads), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def feed_forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = states + self.fc2(gelu(self.fc1(self.final_layer_norm(states))))
        return result


class _Encoder(nn.Module):
    layers: Any

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(config.max_source_positions, width)
        heads, inner = config.encoder_attention_heads, config.encoder_ffn_dim
        self.layers = nn.ModuleList(_Block(width, heads, inner, crosses=False) for _ in range(config.encoder_layers))
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        states = gelu(self.conv2(gelu(self.conv1(mel)))).transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            normed = layer.self_attn_layer_norm(states)
            states = layer.feed_forward(states + layer.self_attn(normed, layer.self_attn.memory(normed), causal=False))
        result: torch.Tensor = self.layer_norm(states)
        return result


class _Decoder(nn.Module):
    layers: Any

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.d_model
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.embed_positions = nn.Embedding(config.max_target_positions, width)
        heads, inner = config.decoder_attention_heads, config.decoder_ffn_dim
        self.layers = nn.ModuleList(_Block(width, heads, inner, crosses=True) for _ in range(config.decoder_layers))
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, at: int, heard: Cache, written: Cache) -> torch.Tensor:
        """The scores of what may follow the last of the tokens, which begin at a position. Their keys and values are
        added to `written`."""
        count = tokens.shape[1]
        states = self.embed_tokens(tokens) + self.embed_positions.weight[at : at + count]
        for number, layer in enumerate(self.layers):
            normed = layer.self_attn_layer_norm(states)
            keys, values = layer.self_attn.memory(normed)
            if at:
                before = written[number]
                keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
            written[number] = keys, values
            states = states + layer.self_attn(normed, (keys, values), causal=count > 1)
            crossed = layer.encoder_attn_layer_norm(states)
            states = layer.feed_forward(states + layer.encoder_attn(crossed, heard[number], causal=False))
        return self.layer_norm(states[:, -1]) @ self.embed_tokens.weight.T  # type: ignore[no-any-return]


class Whisper(nn.Module):
    """Writes down what is said in one spectrogram at a time."""

    def __init__(self, config: WhisperConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.encoder, self.decoder = _Encoder(config), _Decoder(config)
        self.config, self.vocabulary = config, vocabulary

    def fill_masks(self) -> None:
        """Makes what is added to scores: minus infinity for tokens that may not be written. To be called once the
        network is where it runs."""
        known, device = self.vocabulary, self.decoder.embed_tokens.weight.device
        self.never = torch.zeros(self.config.vocab_size, device=device)
        self.never[list(known.suppressed)] = -math.inf
        self.first = self.never.clone()
        self.first[list(known.suppressed_first)] = -math.inf
        self.only_languages = torch.full((self.config.vocab_size,), -math.inf, device=device)
        self.only_languages[list(known.languages.values())] = 0

    @torch.inference_mode()
    def transcribe(self, mel: torch.Tensor, language: int | None, task: int | None) -> tuple[int | None, list[int]]:
        """The token of the language, which is found out if it is not given, and those of the text."""
        states = self.encoder(mel.to(self.encoder.conv1.weight.dtype))
        heard: Cache = [layer.encoder_attn.memory(states) for layer in self.decoder.layers]
        known = self.vocabulary
        if known.languages and language is None:
            scores = self._scores([known.start], 0, heard, self._empty())
            language = int((scores + self.only_languages).argmax())
        prompt = [token for token in (known.start, language, task, known.no_timestamps) if token is not None]
        written, tokens = self._empty(), list[int]()
        scores, masks = self._scores(prompt, 0, heard, written), self.first
        while (token := int((scores + masks).argmax())) != known.end:
            tokens.append(token)
            at, masks = len(prompt) + len(tokens) - 1, self.never
            if at + 1 >= self.config.max_target_positions:
                break
            scores = self._scores([token], at, heard, written)
        return language, tokens

    def _empty(self) -> Cache:
        nothing = torch.empty(0)
        return [(nothing, nothing)] * len(self.decoder.layers)

    def _scores(self, tokens: list[int], at: int, heard: Cache, written: Cache) -> torch.Tensor:
        device = self.never.device
        scores = self.decoder(torch.tensor([tokens], device=device), at, heard, written)
        result: torch.Tensor = scores[0].to(torch.float32)
        return result


def whisper_state(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The weights of this network among those of `transformers`' model: its head is the table of its tokens."""
    return {name.removeprefix("model."): value for name, value in state.items() if not name.startswith("proj_out.")}
