"""The section of a spec about how an encoder reads texts."""

from __future__ import annotations

from typing import Literal

from config.sections.section import Count, Section


class Encoding(Section):
    """How an encoder reads texts, and what an embedding is made of."""

    max_tokens: Count = 128
    """Tokens of a text, with those that the tokenizer adds; texts are padded to it. Compiled into the graph."""
    truncate: Literal["error", "left", "right"] = "error"
    """What happens to a longer text. error: 422; left: its beginning is cut off; right: its end. Lands in the record of
    the MAR."""
    pooling: Literal["cls", "mean"] = "mean"
    """What an embedding is made of. mean: of all tokens; cls: the first. Compiled into the graph."""
    normalise: bool = True
    """Embeddings have the length 1, so that a dot product of two is their cosine. Compiled into the graph."""
