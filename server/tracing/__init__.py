"""Spans of requests and batches. The door stamps the requests and the workers report what they did with them; this
process makes the spans and sends them, so that neither has to wait for a collector."""

from marina.server.tracing.tracer import Tracer, check_sdk

__all__ = ["Tracer", "check_sdk"]
