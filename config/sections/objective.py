"""The sections of a spec about the objective, and about what is sent to see whether it is met."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.sections.section import Section, Share


class Slo(Section):
    """How well it must serve."""

    p99_ms: Annotated[float, Field(gt=0)]
    """99 of 100 requests are answered within it, ms. Judged by the load test; lands in the alerts and dashboard."""
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
    `{cat.jpg: 3, pages/: 1}`; default: `sample` alone. Read by `marina loadtest`, `calibrate` and `compare`."""
    replay: str | None = None
    """A trace of real traffic that is played instead of a rate: CSV or JSON lines with the `time` of each request
    (seconds, or ISO 8601) and, where known, the file of its `sample`; default: none. Read by `marina loadtest`."""
