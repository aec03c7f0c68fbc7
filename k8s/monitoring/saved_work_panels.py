"""The dashboard's panels about work that the model is spared: cached answers, prompts routed to a small model, stored
conversations."""

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import Queries
from marina.k8s.monitoring.panels import Panel

CACHE, FAILURES, ROUTED = "inference_cache_requests_total", "inference_cache_failures_total", "inference_routed_total"
CONVERSATIONS = "inference_conversations_total"


def saved_work_panels(spec: Spec, queries: Queries) -> list[Panel]:
    """The panels, over all pods together. Empty if the spec uses none of these features."""
    panels, cache, text = [], spec.serving.cache, spec.text
    if cache:
        about = "Where answers came from: a worker's memory, Redis, the same request in the same batch, or the model."
        panels.append(_by(queries, "result", "Kept answers", about, CACHE))
    if cache and cache.redis:
        about = "How often Redis was late, unreachable, skipped because of that, or returned data that is not Marina's."
        panels.append(_by(queries, "kind", "Redis", about, FAILURES))
    if text and text.route:
        about = f"What happened to prompts routed to `{text.route.to}`; returned ones were answered by this model."
        panels.append(_by(queries, "result", "Short prompts", about, ROUTED))
    if text and text.sessions:
        about = "Requests that name a conversation: it was started or continued, or could not be read or stored."
        panels.append(_by(queries, "result", "Conversations", about, CONVERSATIONS))
    return panels


def _by(queries: Queries, label: str, title: str, text: str, series: str) -> Panel:
    return Panel(title, text, "reqps", {f"{{{{{label}}}}}": queries.rate(queries.of(series), label)})
