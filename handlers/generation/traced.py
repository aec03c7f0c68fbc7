"""What the trace of a request for text shows: how its prompt was read, how long it waited for a slot, how it was
written. Its figures have the names of OpenTelemetry's conventions for generative models, which are not released yet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from marina.handlers.generation.sequence import AnswerSource, GenerationTask, TextSequence
from marina.handlers.generation.shared_answers import SharedReader
from marina.handlers.generation.text_request import TextRequest
from marina.handlers.tracing import Step, TraceReports, parent_of

Submit = Callable[[GenerationTask], TextSequence]


@dataclass
class TracedText:
    """One request, from its arrival at the handler on."""

    parent: str
    begun: float = field(default_factory=monotonic)
    opened: float | None = None
    request: TextRequest | None = None
    sequences: list[TextSequence] = field(default_factory=list)


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
            if isinstance(source, TextSequence):
                traced.sequences = [source]

    def noting(self, request_id: str, submit: Submit) -> Submit:
        """What submits the tasks of a request with several answers."""
        traced = self._open.get(request_id)

        def submit_and_note(task: GenerationTask) -> TextSequence:
            sequence = submit(task)
            if traced:
                traced.sequences.append(sequence)
            return sequence

        return submit_and_note

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
        steps, sequences = [Step("decode", traced.begun, traced.opened)], traced.sequences
        if not sequences:
            return steps
        started = min((each.started_at for each in sequences if each.started_at is not None), default=None)
        steps.append(Step("queue", traced.opened, now if started is None else started))
        if started is not None:
            facts, last = self._facts(traced.request, sequences, started), max(each.last_at or 0 for each in sequences)
            steps.append(Step("infer", started, last or now, error, facts))
        return steps

    def _facts(self, request: TextRequest, sequences: Sequence[TextSequence], started: float) -> dict[str, Any]:
        parameters = request.parameters
        prompts = parameters.prompts or (parameters.prompt,)
        facts: dict[str, Any] = {
            "gen_ai.operation.name": "chat" if parameters.endpoint == "chat" else "text_completion",
            "gen_ai.provider.name": "marina",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": parameters.max_tokens,
            "gen_ai.request.temperature": parameters.sampling.temperature,
            "gen_ai.usage.input_tokens": sum(map(len, prompts)),
            "gen_ai.usage.output_tokens": sum(each.count for each in sequences),
        }
        if ends := [each.end for each in sequences if each.end is not None]:
            facts["gen_ai.response.finish_reasons"] = ends
        if first := [each.first_at for each in sequences if each.first_at is not None]:
            # From the slot on; what a client waits for is with the request.
            facts["marina.first_token_s"] = round(min(first) - started, 6)
        return facts
