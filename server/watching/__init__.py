"""Watches a running server: readiness, memory, disk, metrics, the drain at its end."""

from server.watching.disk import Disk
from server.watching.drain import drain
from server.watching.health import Health
from server.watching.metrics import MetricsPage, ServerFacts
from server.watching.probe import Prober
from server.watching.renewals import Renewals
from server.watching.worker_metrics import WorkerMetrics

__all__ = ["Disk", "Health", "MetricsPage", "Prober", "Renewals", "ServerFacts", "WorkerMetrics", "drain"]
