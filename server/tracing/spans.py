"""The spans of requests and batches, with the names and attributes of OpenTelemetry's conventions: those of HTTP, which
are stable, and for texts those of generative models, which no release has yet."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from marina.config.distribution import distribution_version
from marina.config.spec import Spec
from marina.server.tracing.clock import Clock
from marina.server.tracing.reports import Report, Step

if TYPE_CHECKING:
    from marina.server.java.traffic import AccessLogEntry, RequestSpan

_METHODS = frozenset(("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"))
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# As the door logs a client that left before its answer; nothing was sent with this status.
_CLIENT_LEFT = 499
# An answer whose parts are sent over so long a time is a stream, or its client reads slowly: when it began is shown.
_STREAMED_US = 1000
# Below a model's own path anything may follow.
_BELOW_MODEL = re.compile(r"(/predictions/[^/]+/[^/]+/).+")


class _SameResource(Resource):
    """The SDK's own writes itself as JSON for every span, to know whether two are the same."""

    def __hash__(self) -> int:
        return id(self)


class SpanMaker:
    """Makes the spans of one server."""

    def __init__(
        self, spec: Spec, instance: str, port: int, is_inference: Callable[[AccessLogEntry], bool], clock: Clock
    ) -> None:
        self._clock = clock
        self._port, self._is_inference, self._writes = port, is_inference, spec.model.writes
        self._model = {"marina.model": spec.name, "marina.model.version": spec.version}
        attributes = {"service.name": spec.name, "service.version": spec.version, "service.instance.id": instance}
        made = Resource.create(attributes)
        self._resource = _SameResource(made.attributes, made.schema_url)
        self._scope = InstrumentationScope("marina", distribution_version())

    def of_request(self, answer: AccessLogEntry, span: RequestSpan, begun_ns: int | None) -> Iterator[ReadableSpan]:
        """The span of a request, and that of its time in the queue if a worker has begun it."""
        start = self._clock.since_1970_ns(span.begun_us * 1000)
        received, ended = start + span.received_us * 1000, start + span.ended_us * 1000
        route = self._route(answer) if self._is_inference(answer) else None
        events = []
        if answer.code != _CLIENT_LEFT and span.ended_us - span.answered_us > _STREAMED_US:
            events.append(Event("answer begins", timestamp=start + span.answered_us * 1000))
        method = answer.method if answer.method in _METHODS else "HTTP"
        yield self._span(
            f"{method} {route}" if route else method,
            _context(span.trace, span.id),
            _context(span.trace, span.parent, is_remote=True) if span.parent else None,
            (start, ended),
            attributes=self._request_attributes(answer, span, route),
            kind=SpanKind.SERVER,
            events=events,
            is_error=answer.code >= 500,
        )
        if begun_ns is not None:
            yield self._span("queue", _child(span.trace), _context(span.trace, span.id), (received, begun_ns))

    def of_report(self, report: Report) -> Iterator[ReadableSpan]:
        """The span of a batch, and those of the steps of its requests."""
        batch = report.batch and _context(f"{secrets.randbits(128) or 1:032x}", _new_id())
        if report.batch and batch:
            links = [Link(_context(*_ids(parent))) for parent in report.requests]
            yield self._of_step(report.batch, batch, None, links, self._model)
        for parent, steps in report.requests.items():
            trace, span = _ids(parent)
            for step in steps:
                links = [Link(batch)] if batch and step.name == "infer" else []
                yield self._of_step(step, _child(trace), _context(trace, span), links)

    def _of_step(
        self,
        step: Step,
        context: SpanContext,
        parent: SpanContext | None,
        links: Sequence[Link],
        more: dict[str, Any] | None = None,
    ) -> ReadableSpan:
        attributes = {**step.facts, **(more or {}), **({"error.type": step.error} if step.error else {})}
        times = step.begin_ns, step.end_ns
        is_error = step.error is not None
        return self._span(step.name, context, parent, times, attributes=attributes, links=links, is_error=is_error)

    def _request_attributes(self, answer: AccessLogEntry, span: RequestSpan, route: str | None) -> dict[str, Any]:
        client, _, port = answer.client.rpartition(":")
        attributes: dict[str, Any] = {
            "http.request.method": answer.method if answer.method in _METHODS else "_OTHER",
            "url.path": answer.path,
            "url.scheme": "http",
            "network.protocol.version": answer.protocol.partition("/")[2],
            "client.address": client.strip("[]"),
            "client.port": int(port) if port.isdigit() else 0,
            "server.port": self._port,
            "http.request.body.size": span.body_bytes,
        }
        if answer.method not in _METHODS:
            attributes["http.request.method_original"] = answer.method
        if route:
            attributes |= self._model | {"http.route": route}
        if span.request_id:
            attributes["http.response.header.x-request-id"] = [span.request_id]
        if answer.code == _CLIENT_LEFT:
            attributes["error.type"] = "client_left"
        else:
            attributes["http.response.status_code"] = answer.code
            if answer.code >= 500:
                attributes["error.type"] = str(answer.code)
        return attributes

    def _route(self, answer: AccessLogEntry) -> str:
        return answer.path if self._writes else _BELOW_MODEL.sub(r"\1{rest}", answer.path)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        *,
        attributes: dict[str, Any] | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        events: Sequence[Event] = (),
        links: Sequence[Link] = (),
        is_error: bool = False,
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes or {},
            events,
            links,
            kind,
            status=Status(StatusCode.ERROR if is_error else StatusCode.UNSET),
            start_time=times[0],
            end_time=times[1],
            instrumentation_scope=self._scope,
        )


def _ids(parent: str) -> tuple[str, str]:
    _, trace, span, _ = parent.split("-")
    return trace, span


def _new_id() -> str:
    return f"{secrets.randbits(64) or 1:016x}"


def _child(trace: str) -> SpanContext:
    return _context(trace, _new_id())


def _context(trace: str, span: str, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote, _SAMPLED)
