"""What a run measures of streamed answers, besides their response times."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from marina.config.record import Part
from marina.loadtest.measuring.histogram import Histogram


def _histogram(value: Any) -> Histogram:
    return value if isinstance(value, Histogram) else Histogram.from_data(value)


Latencies = Annotated[Histogram, BeforeValidator(_histogram), PlainSerializer(Histogram.to_data)]


class Streams(Part):
    """The streamed answers of a window, or of a slice of it."""

    first: Latencies
    """From the intended send to the first text (TTFT)."""
    gaps: Latencies
    """From one piece of text to the next, as they arrive (ITL); each gap counts in the slice in which it ends."""
    pace: Latencies
    """For each answer, from its first text to its last token, divided by the tokens after the first (TPOT)."""
    met: int
    """Requests that met every objective; the pace is what `itl_p99_ms` limits here."""
    tokens: int
    """Tokens written, as counted by the server; if it does not count, pieces of text."""
    prompt_tokens: int
    """Tokens of the prompts, if the server counts them."""
    cached_tokens: int
    """Prompt tokens that the server did not compute again."""
    took_s: float = 0.0
    """From the start of the window to the end of the last of these answers."""


def merge_streams(parts: Iterable[Streams | None]) -> Streams | None:
    """Merges the streams of several processes, slices or runs; None if no answer was streamed."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    sums = add_up(present, "first", "gaps", "pace", "met", "tokens", "prompt_tokens", "cached_tokens")
    return Streams(**sums, took_s=max(part.took_s for part in present))


def add_up(parts: Sequence[Part], *names: str) -> dict[str, Any]:
    """The named fields, each added up over all parts: numbers, counts by name, histograms or tuples."""
    return {name: _sum([getattr(part, name) for part in parts]) for name in names}


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Histogram):
        return merge_histograms(values)
    if isinstance(values[0], dict):
        return dict(sorted(sum(map(Counter, values), Counter()).items()))
    if isinstance(values[0], tuple):
        return tuple(chain.from_iterable(values))
    return sum(values)


def merge_histograms(histograms: Sequence[Histogram]) -> Histogram:
    whole = Histogram(histograms[0].limits)
    for histogram in histograms:
        whole.merge(histogram)
    return whole
