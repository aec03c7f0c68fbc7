"""The section of a spec about how an encoder reads texts."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from config.sections.section import Count, Section
from config.sections.varying import Varying, check_buckets


class Encoding(Section):
    """How an encoder reads texts, and what an embedding is made of."""

    max_tokens: Count = 128
    """Most tokens of a text, with those that the tokenizer adds. Lands in the record and the compiled graph."""
    buckets: tuple[Count, ...] = ()
    """Lengths that are compiled, in tokens, in rising order, the last is `max_tokens`; a text is padded to the next of
    them. Default: a quarter of `max_tokens`, half of it, and `max_tokens`. Land in the record and the compiled
    graph."""
    dynamic: bool = False
    """Instead of `buckets`: one artifact for each batch size takes every length, and texts that run together are padded
    to the longest of them. Lands in the record and the compiled graph."""
    truncate: Literal["error", "left", "right"] = "error"
    """What happens to a longer text. error: 422; left: its beginning is cut off; right: its end. Lands in the record of
    the MAR."""
    pooling: Literal["cls", "mean"] = "mean"
    """What an embedding is made of. mean: of all tokens; cls: the first. Compiled into the graph."""
    normalise: bool = True
    """Embeddings have the length 1, so that a dot product of two is their cosine. Compiled into the graph."""

    @model_validator(mode="after")
    def _buckets_fit(self) -> Encoding:
        check_buckets(self.buckets, self.max_tokens, "max_tokens", dynamic=self.dynamic)
        return self

    @property
    def varying(self) -> Varying:
        """The length of a text as a dimension that varies."""
        return Varying(max=self.max_tokens, buckets=self.buckets, dynamic=self.dynamic)
