"""What a run measured of answers that come token by token, beside how long they took in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from config.record import Part
from loadtest.measuring.histogram import Histogram


def _histogram(value: Any) -> Histogram:
    return value if isinstance(value, Histogram) else Histogram.from_data(value)


Latencies = Annotated[Histogram, BeforeValidator(_histogram), PlainSerializer(Histogram.to_data)]


class Streams(Part):
    """Of the good answers of a window, or of a stretch of it."""

    first: Latencies
    """From the intended send to the first text (TTFT)."""
    gaps: Latencies
    """From one piece of text to the next, as they arrive (ITL); counted where they end."""
    pace: Latencies
    """Of each answer, from its first text to its last token, by each token after the first (TPOT)."""
    met: int
    """Requests that met every objective; for `itl_p99_ms` its pace counts."""
    tokens: int
    """Tokens written, as the server counts them where it does, else pieces of text."""
    prompt_tokens: int
    """Tokens of the prompts, where the server counts them."""
    cached_tokens: int
    """Those of them that the server did not compute again."""
    took_s: float = 0.0
    """From the begin of the window to the end of the last of these answers."""


def merge_streams(parts: Iterable[Streams | None]) -> Streams | None:
    """As one; None where no answer came token by token."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    return Streams(
        **{name: merge_histograms([getattr(part, name) for part in present]) for name in ("first", "gaps", "pace")},
        **{
            name: sum(getattr(part, name) for part in present)
            for name in ("met", "tokens", "prompt_tokens", "cached_tokens")
        },
        took_s=max(part.took_s for part in present),
    )


def merge_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """Histograms with the same limits as one."""
    whole = Histogram(histograms[0].limits)
    for histogram in histograms:
        whole.merge(histogram)
    return whole
