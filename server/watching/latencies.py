"""The page `/latencies`: what a gate compares two revisions by, counted since the server started.

`/metrics` has the same answers in some fifty buckets, 11 to 25 % apart, because each is a series in Prometheus. A
regression of 20 % cannot be told with those. This page has buckets of 1 %, and is read by a gate alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marina.server.java.traffic import Traffic
from marina.server.system.processes import resident_bytes
from marina.server.watching.health import Health

SCHEMA = "marina.latencies/1"


@dataclass(frozen=True)
class LatenciesPage:
    """Renders the page."""

    traffic: Traffic
    health: Health
    sha256: str
    started: float
    """When the server started, s since 1970: counts of another start cannot be subtracted."""
    renewed: Callable[[], int]

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
        }
