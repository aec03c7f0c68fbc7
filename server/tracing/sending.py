"""Sends spans to the collector with OpenTelemetry's SDK, in a thread of its own. What it cannot send is lost, counted,
and said once."""

import logging
import threading
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

# Some five spans a request: what 500 traced requests a second leave in two seconds.
_MOST_WAITING, _MOST_AT_ONCE = 5000, 500
_EVERY_MS, _TIMEOUT_S = 400, 5


class SpanSender:
    """Takes spans from one thread, and sends them within half a second."""

    def __init__(self, url: str, *, say: Callable[[str], None]) -> None:
        self._exporter = _Counting(OTLPSpanExporter(endpoint=url, timeout=_TIMEOUT_S), url, say)
        self._processor = BatchSpanProcessor(
            self._exporter, _MOST_WAITING, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_MOST_AT_ONCE
        )
        self._taken = self._dropped = 0
        # The SDK would print a traceback for a collector that does not answer.
        sdk = logging.getLogger("opentelemetry")
        sdk.propagate = False
        sdk.addHandler(logging.NullHandler())

    @property
    def sent(self) -> int:
        """How many the collector has taken."""
        return self._exporter.sent

    @property
    def lost(self) -> int:
        """How many it has not, and never will."""
        return self._dropped + self._exporter.failed

    def take(self, span: ReadableSpan) -> None:
        """Queues a span; one for which there is no room is lost."""
        if self._taken - self._exporter.sent - self._exporter.failed >= _MOST_WAITING:
            self._dropped += 1
            return
        self._taken += 1
        self._processor.on_end(span)

    def flush(self, timeout_s: float) -> None:
        """Waits until all spans are sent; not if the collector did not answer last, and no longer than `timeout_s`."""
        if not self._exporter.is_failing:
            flushing = threading.Thread(target=self._processor.force_flush, name="last-spans", daemon=True)
            flushing.start()
            flushing.join(timeout_s)


class _Counting(SpanExporter):
    """Counts what becomes of the spans, and says when that changes."""

    def __init__(self, exporter: SpanExporter, url: str, say: Callable[[str], None]) -> None:
        self._exporter, self._url, self._say = exporter, url, say
        self.sent = self.failed = 0
        self.is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails:
            self.failed += len(spans)
        else:
            self.sent += len(spans)
        if fails and not self.is_failing:
            self._say(f"warning: traces are lost: no collector takes them at {self._url}")
        elif self.is_failing and not fails:
            self._say("traces are sent again")
        self.is_failing = fails
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
