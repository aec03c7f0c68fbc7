"""The page `/latencies`: what a gate compares two revisions by, counted since the server started.

`/metrics` has the same answers in some fifty buckets, 11 to 25 % apart, because each is a series in Prometheus. A
regression of 20 % cannot be told with those. This page has buckets of 1 %, and is read by a gate alone."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marina.config.histogram import Histogram
from marina.server.java.traffic import Traffic
from marina.server.system.processes import resident_bytes
from marina.server.watching.health import Health

SCHEMA = "marina.latencies/1"
# As the workers of language models write them: `handlers/generation/times.py`.
TIMES_FOLDER, TIMES_FIGURES, TIMES_BUCKETS = "times", ("ttft", "itl"), 1_802


@dataclass(frozen=True)
class LatenciesPage:
    """Renders the page."""

    traffic: Traffic
    health: Health
    sha256: str
    started: float
    """When the server started, s since 1970: counts of another start cannot be subtracted."""
    renewed: Callable[[], int]
    times: Path
    """The folder in which the workers of a language model count how long clients waited for tokens."""

    def data(self) -> dict[str, Any]:
        """The counts of this moment."""
        workers = self.health.workers()
        # A worker that was renewed for its memory was started again on purpose.
        died = sum(worker.restarts for worker in workers) - self.renewed()
        return {
            "schema": SCHEMA,
            "sha256": self.sha256,
            "started": self.started,
            "worker_restarts": max(0, died),
            "memory_bytes": sum(resident_bytes(worker.pid) for worker in workers if worker.alive),
            "answers": self.traffic.answers(),
            "tokens": {name: counted.to_data() for name, counted in self._tokens().items()},
        }

    def _tokens(self) -> dict[str, Histogram]:
        """What all workers of a language model counted; empty for other models."""
        files = sorted(self.times.iterdir()) if self.times.is_dir() else []
        layout = struct.Struct(f"<{TIMES_BUCKETS * len(TIMES_FIGURES)}q")
        counts = [layout.unpack(data) for file in files if len(data := file.read_bytes()) == layout.size]
        whole = [sum(each) for each in zip(*counts, strict=True)]
        return {
            name: Histogram.of_counts(whole[at * TIMES_BUCKETS : (at + 1) * TIMES_BUCKETS])
            for at, name in enumerate(TIMES_FIGURES)
            if whole
        }
