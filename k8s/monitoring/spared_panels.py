"""The dashboard's panels about what is asked beside this model: kept answers, a small model, kept conversations."""

from __future__ import annotations

from config.spec import Spec
from k8s.monitoring.expressions import Queries
from k8s.monitoring.panels import Panel, Query

CACHE, FAILURES, ROUTED = "inference_cache_requests_total", "inference_cache_failures_total", "inference_routed_total"
CONVERSATIONS = "inference_conversations_total"


def spared_panels(spec: Spec, queries: Queries) -> list[Panel]:
    """Of all pods together; none where every request is computed here."""
    panels = []
    if spec.serving.cache:
        panels.append(
            _by(
                "Kept answers",
                "Where answers came from: a worker's memory, Redis, the same request in one batch, or the model.",
                queries.rate(queries.of(CACHE), "result"),
                "result",
            )
        )
    if spec.serving.cache and spec.serving.cache.redis:
        text = "Times that Redis was late, unreachable or not asked because of that, or held a foreign value."
        panels.append(_by("Redis", text, queries.rate(queries.of(FAILURES), "kind"), "kind"))
    if spec.text and spec.text.route:
        text = f"What became of prompts that are meant for `{spec.text.route.to}`; `returned` ones were answered here."
        panels.append(_by("Short prompts", text, queries.rate(queries.of(ROUTED), "result"), "result"))
    if spec.text and spec.text.sessions:
        text = "Requests that named a conversation: it began, went on, could not be read, or could not be kept."
        panels.append(_by("Conversations", text, queries.rate(queries.of(CONVERSATIONS), "result"), "result"))
    return panels


def _by(title: str, text: str, expression: str, label: str) -> Panel:
    return Panel(title, text, "reqps", (Query(expression, f"{{{{{label}}}}}"),))
