"""The section of a spec about how an encoder reads texts."""

from typing import Literal

from pydantic import model_validator

from marina.config.sections.section import Count, Section
from marina.config.sections.varying import Buckets, Varying, check_buckets


class Encoding(Section):
    """How an encoder reads texts, and what an embedding is made of."""

    max_tokens: Count = 128
    """Most tokens of a text, including those that the tokenizer adds. Lands in the record and the compiled graph."""
    buckets: Buckets = ()
    """The lengths that are compiled, in tokens, ascending, the last one `max_tokens`; a text is padded to the next of
    them. Default: a quarter of `max_tokens`, half of it, and `max_tokens`. dynamic: one artifact for each batch size
    takes every length, and the texts of a batch are padded to the longest of them. Land in the record and the compiled
    graph."""
    truncate: Literal["error", "left", "right"] = "error"
    """What happens to a longer text. error: it gets 422; left: its beginning is cut off; right: its end is cut off.
    Lands in the record of the MAR."""
    pooling: Literal["cls", "last", "mean"] = "mean"
    """What an embedding is made of. mean: the mean of all tokens; cls: the first token; last: the last one. If
    `sentence-transformers` saved the folder, it has to be what its `modules.json` says. Embeddings are scaled to length
    1, unless that file has no `Normalize`. Compiled into the graph."""

    @model_validator(mode="after")
    def _buckets_fit(self) -> "Encoding":
        check_buckets(self.buckets, self.max_tokens, "max_tokens")
        return self

    @property
    def varying(self) -> Varying:
        """The length of a text, as a varying dimension."""
        return Varying(max=self.max_tokens, buckets=self.buckets)
