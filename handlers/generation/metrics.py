"""The metrics of a worker that writes text, besides those of every worker (`handlers/metrics.py`)."""

from prometheus_client import Counter, Gauge, Histogram

from marina.handlers.generation.engine import Usage
from marina.handlers.generation.refusals import REFUSAL_KINDS
from marina.handlers.generation.sequence import TextSequence
from marina.handlers.generation.times import TokenTimes
from marina.handlers.metrics import Metrics

FIRST_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0),
    *(1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
GAP_BUCKETS = (
    *(0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0),
)


class TextMetrics:
    """The series of one model. The loop tells it of each event, of `on_cancel` also in the thread that cancels."""

    def __init__(self, base: Metrics, model: str, times: TokenTimes | None = None) -> None:
        self._base, self._times = base, times
        base.show_errors(REFUSAL_KINDS)
        registry = self.registry = base.registry
        self._first = Histogram(
            "inference_time_to_first_token_seconds",
            "From a request's arrival at the handler to its first token",
            ["model"],
            buckets=FIRST_BUCKETS,
            registry=registry,
        ).labels(model)
        self._gap = Histogram(
            "inference_time_between_tokens_seconds",
            "From one token of an answer to the next",
            ["model"],
            buckets=GAP_BUCKETS,
            registry=registry,
        ).labels(model)
        tokens = Counter("inference_tokens", "Tokens read and written", ["model", "kind"], registry=registry)
        self._read, self._written = tokens.labels(model, "prompt"), tokens.labels(model, "generated")
        ends = Counter(
            "inference_sequences_ended",
            "Answers that ended: by the model or a stop string, at their length, by an error, or when the client left",
            ["model", "reason"],
            registry=registry,
        )
        self._ends = {reason: ends.labels(model, reason) for reason in ("cancelled", "error", "length", "stop")}
        reused = "Tokens of prompts that were in the engine's cache, and not computed again"
        self._reused = Counter("inference_reused_tokens", reused, ["model"], registry=registry).labels(model)
        self._reused_before: int | None = None
        schemas = Counter(
            "inference_schemas", "Schemas that answers had to match", ["model", "from"], registry=registry
        )
        self._schemas = {known: schemas.labels(model, "cache" if known else "compiler") for known in (False, True)}
        self._gauges(model)

    def _gauges(self, model: str) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            # There is only one worker, and its values end with it.
            return Gauge(name, text, ["model", *labels], registry=self._base.registry, multiprocess_mode="livemax")

        sequences = gauge("inference_sequences", "Answers being written", "state")
        self._running, self._waiting = sequences.labels(model, "running"), sequences.labels(model, "waiting")
        self._cached = gauge("inference_cached_tokens", "Tokens in the engine's cache").labels(model)
        self._cache = gauge("inference_cache_tokens", "Tokens that the engine's cache has room for").labels(model)

    def count_prompt(self, tokens: int) -> None:
        self._read.inc(tokens)

    def count_schema(self, is_known: bool) -> None:
        self._schemas[is_known].inc()

    def count_refusal(self, kind: str) -> None:
        self._base.count([kind])

    def on_token(self, sequence: TextSequence, gap_s: float | None) -> None:
        self._written.inc()
        if gap_s is not None:
            self._gap.observe(gap_s)
            self._count("itl", gap_s)
        elif sequence.first_at is not None:
            self._first.observe(sequence.first_at - sequence.task.arrived)
            self._count("ttft", sequence.first_at - sequence.task.arrived)

    def _count(self, figure: str, seconds: float) -> None:
        if self._times:
            self._times.add(figure, seconds)

    def on_end(self, sequence: TextSequence) -> None:
        self._ends[sequence.end or "cancelled"].inc()

    def on_cancel(self) -> None:
        self._ends["cancelled"].inc()

    def on_usage(self, usage: Usage, waiting: int) -> None:
        self._running.set(usage.sequences)
        self._waiting.set(waiting)
        self._cached.set(usage.cached_tokens)
        self._cache.set(usage.cache_tokens)
        # What was reused before the first call belongs to the engine's warm-up, not to a request.
        if self._reused_before is not None:
            self._reused.inc(usage.reused_tokens - self._reused_before)
        self._reused_before = usage.reused_tokens
        self._base.count([])
