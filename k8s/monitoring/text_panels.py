"""The dashboard's panels for language models: time to the first token and between tokens, waiting requests, tokens."""

from marina.config.spec import Spec
from marina.k8s.monitoring.expressions import FIRST, GAP, RUNNING, WAITING, Queries
from marina.k8s.monitoring.panels import Panel


def text_panels(spec: Spec, queries: Queries) -> list[Panel]:
    """The panels, each over all pods together except the cache's."""
    first_ms, gap_ms = (spec.slo.ttft_p99_ms, spec.slo.itl_p99_ms) if spec.slo else (None, None)
    used = " / ".join(
        f"sum by (namespace, pod) ({queries.of(f'inference_{name}_tokens')})" for name in ("cached", "cache")
    )
    return [
        _latency("First text", "From a request's arrival to its first token.", FIRST, first_ms, queries),
        _latency("Between tokens", "From one token of an answer to the next.", GAP, gap_ms, queries),
        Panel(
            "Answers being written",
            "Answers that have a slot, and requests that wait for one.",
            "none",
            {"running": queries.sequences(RUNNING), "waiting": queries.sequences(WAITING)},
        ),
        Panel(
            "Tokens",
            "Prompt tokens read and answer tokens written, per second.",
            "none",
            {"{{kind}}": queries.rate(queries.of("inference_tokens_total"), "kind")},
        ),
        Panel(
            "Ends",
            "Why answers ended. `cancelled` means that the client left.",
            "reqps",
            {"{{reason}}": queries.rate(queries.of("inference_sequences_ended_total"), "reason")},
        ),
        Panel("Cache", "Share of the token cache in use.", "percentunit", {"{{pod}}": used}),
    ]


def _latency(title: str, text: str, histogram: str, limit_ms: float | None, queries: Queries) -> Panel:
    lines = {f"p{share * 100:g}": queries.quantile(share, queries.of(f"{histogram}_bucket")) for share in (0.5, 0.99)}
    return Panel(title, text, "s", lines, limits=(limit_ms / 1000,) if limit_ms else ())
