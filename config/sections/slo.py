"""The section `slo` of a spec: the objective."""

from typing import Annotated

from pydantic import Field

from marina.config.sections.section import Positive, Section, Share


class Slo(Section):
    """How well it must serve."""

    p99_ms: Positive
    """99 of 100 requests must be answered within this time, ms; default for a language model with both of the next two
    fields: computed from them, for an answer of `text.max_tokens`. Judged by the load test; lands in the alerts and
    dashboard."""
    ttft_p99_ms: Positive | None = None
    """For a language model: 99 of 100 requests must get their first text within this time, ms. Judged by the load test;
    lands in the alerts and dashboard."""
    itl_p99_ms: Positive | None = None
    """For a language model: 99 of 100 pieces of text must follow the piece before within this time, ms. Judged by the
    load test; lands in the alerts and dashboard."""
    goodput: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For a language model: share of requests that must meet three limits at once: first text within `ttft_p99_ms`, end
    within `p99_ms`, and on average no more than `itl_p99_ms` for each token. Judged by the load test."""
    error_rate: Share = 0.001
    """Largest share of requests that may fail; a 503 because the queue is full counts as failed. Judged by the load
    test; lands in the alerts."""
    throughput_rps: Positive | None = None
    """Rate that one pod must hold, requests/s; default: the load test's own rate. Judged by the load test."""
    regression: Annotated[float, Field(gt=0, le=10)] = 0.2
    """By how much a new package may be worse than the old one, as a share, in latency, in CPU time for each request,
    and in requests answered in time. Judged by `marina compare`."""
