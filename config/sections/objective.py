"""The sections of a spec about the objective, and about what is sent to see whether it is met."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.sections.section import Section, Share


class Slo(Section):
    """How well it must serve."""

    p99_ms: Annotated[float, Field(gt=0)]
    """99 of 100 requests are answered within it, ms; default for a language model with both of the next two: what they
    come to for an answer of `text.max_tokens`. Judged by the load test; lands in the alerts and dashboard."""
    ttft_p99_ms: Annotated[float, Field(gt=0)] | None = None
    """For a language model: 99 of 100 requests have their first text within it, ms. Judged by the load test; lands in
    the alerts and dashboard."""
    itl_p99_ms: Annotated[float, Field(gt=0)] | None = None
    """For a language model: 99 of 100 pieces of text come within it after the one before, ms. Judged by the load test;
    lands in the alerts and dashboard."""
    goodput: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For a language model: share of requests that must meet all of these: the first text and the end in time, and
    their tokens on average within `itl_p99_ms`. Judged by the load test."""
    error_rate: Share = 0.001
    """Largest share of requests that may fail; shed ones count. Judged by the load test; lands in the alerts."""
    throughput_rps: Annotated[float, Field(gt=0)] | None = None
    """Rate that one pod must hold, requests/s; default: the load test's own rate. Judged by the load test."""
    regression: Annotated[float, Field(gt=0, le=10)] = 0.2
    """By how much a new package may be worse than the old one, as a share: in latency, in CPU time a request and, the
    other way round, in requests answered in time. Judged by `marina compare`."""


class Load(Section):
    """What the load test and the readiness inference send."""

    sample: str | None = None
    """An image, `.json` or `.npy` file; default: one generated from the model's inputs. Lands in the MAR."""
    samples: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """What the load test sends instead: files, or folders of such, with how often each is sent beside the others,
    `{cat.jpg: 3, pages/: 1}`; each line of a `.jsonl` file is a body; default: `sample` alone. Read by `marina
    loadtest`, `calibrate` and `compare`."""
    max_tokens: dict[Annotated[int, Field(ge=1, strict=False)], Annotated[float, Field(gt=0)]] | None = None
    """For a language model: the lengths of answers that the load test asks for, with how often each is asked for beside
    the others, `{32: 5, 256: 1}`; default: as the samples say. Read by `marina loadtest`, `calibrate` and `compare`."""
    replay: str | None = None
    """A trace of real traffic that is played instead of a rate: CSV or JSON lines with the `time` of each request
    (seconds, or ISO 8601) and, where known, the file of its `sample`; default: none. Read by `marina loadtest`."""
