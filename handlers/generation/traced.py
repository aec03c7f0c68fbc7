"""What the trace of a request for text shows: how its prompt was read, how long it waited for a slot, how it was
written. Its figures have the names of OpenTelemetry's conventions for generative models, which are not released yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from marina.handlers.generation.sequence import AnswerSource, TextSequence
from marina.handlers.generation.shared_answers import SharedReader
from marina.handlers.generation.text_request import TextRequest
from marina.handlers.tracing import Step, TraceReports, parent_of


@dataclass
class TracedText:
    """One request, from its arrival at the handler on."""

    parent: str
    begun: float = field(default_factory=monotonic)
    opened: float | None = None
    request: TextRequest | None = None
    sequence: TextSequence | None = None


class TracedTexts:
    """The open requests that are traced, by their ids."""

    def __init__(self, model: str, reports: TraceReports | None) -> None:
        self._model, self._reports = model, reports
        self._open: dict[str, TracedText] = {}

    def begin(self, request_id: str, headers: Mapping[str, Any]) -> None:
        """A request has arrived."""
        if self._reports and (parent := parent_of(headers)):
            self._open[request_id] = TracedText(parent)

    def open(self, request: TextRequest, source: AnswerSource | None) -> None:
        """Its prompt is read, and its answer begins; without a source nothing is computed for it here."""
        if traced := self._open.get(request.task.id):
            if isinstance(source, SharedReader):
                # What is computed for another request is in that one's trace.
                source = source.answer.source if source.answer.task.id == request.task.id else None
            traced.opened, traced.request = monotonic(), request
            traced.sequence = source if isinstance(source, TextSequence) else None

    def parent(self, request_id: str) -> str | None:
        """What a request to another server has to name as its parent."""
        traced = self._open.get(request_id)
        return traced.parent if traced else None

    def end(self, request_id: str, error: str | None = None) -> None:
        """The last of its answer is about to be sent, or its client has left."""
        traced = self._open.pop(request_id, None)
        if traced and self._reports:
            self._reports.request(traced.parent, self._steps(traced, monotonic(), error))

    def _steps(self, traced: TracedText, now: float, error: str | None) -> list[Step]:
        if traced.opened is None or traced.request is None:
            return [Step("decode", traced.begun, now, error)]
        steps, sequence = [Step("decode", traced.begun, traced.opened)], traced.sequence
        if sequence is None:
            return steps
        steps.append(Step("queue", traced.opened, sequence.started_at or now))
        if sequence.started_at is not None:
            facts = self._facts(traced.request, sequence)
            steps.append(Step("infer", sequence.started_at, sequence.last_at or now, error, facts))
        return steps

    def _facts(self, request: TextRequest, sequence: TextSequence) -> dict[str, Any]:
        parameters = request.parameters
        facts: dict[str, Any] = {
            "gen_ai.operation.name": "chat" if parameters.endpoint == "chat" else "text_completion",
            "gen_ai.provider.name": "marina",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": parameters.max_tokens,
            "gen_ai.request.temperature": parameters.sampling.temperature,
            "gen_ai.usage.input_tokens": len(parameters.prompt),
            "gen_ai.usage.output_tokens": sequence.count,
        }
        if sequence.end is not None:
            facts["gen_ai.response.finish_reasons"] = [sequence.end]
        if sequence.first_at is not None and sequence.started_at is not None:
            # From the slot on; what a client waits for is with the request.
            facts["marina.first_token_s"] = round(sequence.first_at - sequence.started_at, 6)
        return facts
