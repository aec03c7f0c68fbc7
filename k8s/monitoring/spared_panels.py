"""The dashboard's panels about what is asked beside this model: kept answers, a small model, kept conversations."""

from __future__ import annotations

from config.spec import Spec
from k8s.monitoring.expressions import Queries
from k8s.monitoring.panels import Panel, Query

CACHE, FAILURES, ROUTED = "inference_cache_requests_total", "inference_cache_failures_total", "inference_routed_total"
CONVERSATIONS = "inference_conversations_total"


def spared_panels(spec: Spec, queries: Queries) -> list[Panel]:
    """Of all pods together; none where every request is computed here."""
    panels, cache, text = [], spec.serving.cache, spec.text
    if cache:
        about = "Where answers came from: a worker's memory, Redis, the same request in one batch, or the model."
        panels.append(_by(queries, "result", "Kept answers", about, CACHE))
    if cache and cache.redis:
        about = "Times that Redis was late, unreachable or not asked because of that, or held foreign data."
        panels.append(_by(queries, "kind", "Redis", about, FAILURES))
    if text and text.route:
        about = f"What came of prompts that are for `{text.route.to}`; those that came back were answered here."
        panels.append(_by(queries, "result", "Short prompts", about, ROUTED))
    if text and text.sessions:
        about = (
            "Requests that named a conversation: it began, it went on, it could not be read, or could not be stored."
        )
        panels.append(_by(queries, "result", "Conversations", about, CONVERSATIONS))
    return panels


def _by(queries: Queries, label: str, title: str, text: str, series: str) -> Panel:
    return Panel(title, text, "reqps", (Query(queries.rate(queries.of(series), label), f"{{{{{label}}}}}"),))
