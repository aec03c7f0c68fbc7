"""Watches a running server: readiness, memory, disk, metrics, the drain at its end."""

from marina.server.watching.disk import Disk
from marina.server.watching.drain import drain
from marina.server.watching.health import Health
from marina.server.watching.metrics import MetricsPage, ServerFacts
from marina.server.watching.pages import PageResponse, json_response, serve_pages
from marina.server.watching.probe import Prober
from marina.server.watching.renewals import Renewals
from marina.server.watching.worker_metrics import WorkerMetrics

__all__ = [
    "Disk",
    "Health",
    "MetricsPage",
    "PageResponse",
    "Prober",
    "Renewals",
    "ServerFacts",
    "WorkerMetrics",
    "drain",
    "json_response",
    "serve_pages",
]
