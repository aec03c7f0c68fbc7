"""The base class of all handlers. It loads the model, warms it up, and answers batches, in which each request succeeds
or fails on its own."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http.client import responses
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch

from marina.handlers import memory, receive, renewal, starting
from marina.handlers.arrays import Array, check_range, numpy_dtype
from marina.handlers.artifact import LoadedArtifact, load_artifact, pick_device
from marina.handlers.batching import Batcher
from marina.handlers.caching import AnswerCache, find_repeats, open_cache, pack_answer
from marina.handlers.guarding import Failure, Steps, guard
from marina.handlers.lengths import check_length
from marina.handlers.metrics import BatchReport, Metrics
from marina.handlers.protocols import HEADER, Exchange, NamedTensor, Row, read_exchange, tensor_rows
from marina.handlers.record import PackedRecord, RecordError, TensorSpec, load_record
from marina.handlers.request import Answer, Form, Request
from marina.handlers.tracing import TraceReports, open_reports
from marina.handlers.validation import AnswerError, AnswerTooLarge, Overdue

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The id of a request that TorchServe has given none, such as the rehearsal of the sample.
_NO_ID = "-"
# A request may hold this many JSON values, or this multiple of the number of values in the model's inputs if that is
# more.
_LEAST_VALUES, _VALUES_PER_INPUT = 1_000_000, 2
# The share of `serving.response_timeout_s` in which the requests of a batch must be decoded; the model gets the rest.
_DECODING_SHARE = 0.5
# The most rows in one request of a protocol that allows several; fewer if the model is slow.
_MAX_ROWS = 64
# An illegal header makes TorchServe's frontend kill the worker.
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,199}")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]*")


class Context(Protocol):
    """The part of `ts.context.Context` that handlers use."""

    @property
    def system_properties(self) -> Mapping[str, Any]: ...
    @property
    def model_yaml_config(self) -> Mapping[str, Any] | None: ...
    def get_request_id(self, idx: int = 0) -> str | None: ...
    def get_all_request_header(self, idx: int) -> Mapping[str, Any]: ...
    def set_response_content_type(self, idx: int, value: str) -> None: ...
    def set_response_header(self, idx: int, key: str, value: str) -> None: ...
    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None: ...


class Handler:
    """Base of all handlers. To write your own, derive from it and override `decode` and `encode`, and `setup` if there
    is something to load. The spec names the class, here with `model.handler: ./lengths.py:Lengths`, and the files that
    it reads, here with `model.files: [./words.txt]`:

        from marina.handlers.base import Handler
        from marina.handlers.request import Answer
        from marina.handlers.validation import Unprocessable

        class Lengths(Handler):
            def setup(self):
                self.words = (self.directory / "files" / "words.txt").read_text().split()

            def decode(self, request):  # one array per input of the model, without the batch dimension
                if len(request.body) > 64:
                    raise Unprocessable("the text is too long", got=f"{len(request.body)} bytes", allowed="at most 64")
                return [np.frombuffer(request.body.ljust(64), np.uint8)]

            def encode(self, outputs, request):  # one array per output of the model, without the batch dimension
                return Answer(self.words[outputs[0].argmax()].encode(), "text/plain")

    `takes = Form({"type": "string", "maxLength": 64}, "a text")` declares the bodies that it takes, and `gives`
    declares its answers. `/docs` shows both, and `marina package` checks the examples and the answer to the sample
    against them.

    If `decode` or `encode` raises a `RequestError`, the request is answered with a 4xx. Any other exception answers it
    with a 500, and the traceback goes to the log."""

    takes: ClassVar[Form | None] = None
    gives: ClassVar[Form | None] = None
    record: PackedRecord
    directory: Path
    device: torch.device
    artifact: LoadedArtifact
    metrics: Metrics
    max_rows: int = _MAX_ROWS
    """How many rows one request may hold, so that a whole batch of such requests is still answered in time."""
    answer_headers: Sequence[str] = ()
    """Further request headers that answers depend on, in lower case. With `serving.cache`, a request gets the answer of
    an earlier one if both have the same body, content type and `Accept`, and the same values of these headers."""
    cache: AnswerCache | None = None
    traces: TraceReports | None = None
    _is_traced: bool = False

    def setup(self) -> None:
        """Called once, after `self.record`, `self.directory` and `self.artifact` are set and before the warm-up."""

    def decode(self, request: Request) -> list[Array]:
        raise NotImplementedError

    def encode(self, outputs: list[Array], request: Request) -> Answer:
        raise NotImplementedError

    def exchange(self, request: Request) -> Exchange:
        """Decodes a body into rows and says how to make the answer; by default one row, by `decode` and `encode`."""
        return Exchange([self.decode_row(request)], lambda rows: self.encode(rows[0], request))

    def decode_row(self, request: Request) -> Row:
        """What `decode` makes of a body or of an instance. The user's is checked here, so that an error names the
        instance, and copied, because it may fill the same arrays again for the next one."""
        row = self.decode(request)
        if self._is_built_in:
            return row
        self._check_row(row)
        return [np.array(array) for array in row]

    @property
    def tensor_names(self) -> set[str]:
        """The names that the tensors of a V2 request must have."""
        return {spec.name for spec in self.record.inputs}

    def decode_tensors(self, tensors: Mapping[str, NamedTensor], until: float) -> tuple[list[Row], bool]:
        """The rows of a V2 request, and whether its tensors had a dimension for rows. By default the tensors are the
        model's inputs."""
        return tensor_rows(tensors, self.record.inputs, self.max_rows)

    def name_outputs(self, outputs: Row) -> Mapping[str, Array | list[str]]:
        """The values by which a V2 request is answered, for one row; by default the model's outputs."""
        return {spec.name: value for spec, value in zip(self.record.outputs, outputs, strict=True)}

    def load(self) -> LoadedArtifact:
        """Loads the model. Override this to run something other than what the packager compiled."""
        return load_artifact(self.record, self.directory, self.device)

    def _read_labels(self) -> list[str] | None:
        """The package's labels, one per class; None if it has none."""
        if self.record.labels is None:
            return None
        return (self.directory / self.record.labels).read_text("utf-8").rstrip("\n").split("\n")

    def initialize(self, context: Context) -> None:
        """TorchServe calls this once. Returns when the model is warm in every shape and has answered the sample; raises
        RecordError if the package does not fit."""
        starting.reached("imports")
        self.directory = Path(context.system_properties["model_dir"])
        self.record = load_record(self.directory)
        _set_threads(self.record.threads)
        self.device = pick_device(self.record, context.system_properties.get("gpu_id"))
        self.artifact = self.load()
        self._decoding_s = _DECODING_SHARE * ((context.model_yaml_config or {}).get("responseTimeout") or math.inf)
        values = sum(math.prod(spec.shape) for spec in self.record.inputs)
        self._max_values = max(_LEAST_VALUES, _VALUES_PER_INPUT * values)
        self.setup()
        self._batcher = Batcher(self.artifact, self.record.inputs, self.record.outputs, self.record.lengths)
        starting.reached("load")
        self._batcher.warm_up()
        self.max_rows = self._rows_in_time(context)
        # We do not know what bodies a custom `decode` takes. There, only the path can say that a request uses a
        # protocol.
        self._is_built_in = type(self).decode.__module__.startswith("marina.handlers.")
        self.rehearse()
        self.metrics = Metrics(self.record, self.artifact.kind, self.device)
        self.cache = open_cache(self.metrics.registry, self.record.name)
        self.traces = open_reports()
        receive.install_receiver()
        renewal.arm(context)
        starting.reached("warm")

    def handle(self, data: Sequence[Mapping[str, Any]] | None, context: Context) -> list[bytes]:
        """TorchServe calls this for each batch. Returns one answer per row, whatever the rows contain."""
        rows = data or []
        if not rows:
            return []
        ids = [context.get_request_id(index) or _NO_ID for index in range(len(rows))]
        headers = [context.get_all_request_header(index) for index in range(len(rows))]
        traced = self.traces.traced(headers) if self.traces else {}
        self._is_traced, begun = bool(traced), perf_counter()
        answers, report = self._answer(rows, headers, ids)
        self.metrics.record(report)
        if self.traces and traced:
            steps = {parent: report.steps.get(place, ()) for place, parent in traced.items()}
            self.traces.batch(begun, steps, rows=report.rows, padding=report.padding)
        memory.release_freed()
        return [_send(answer, index, context) for index, answer in enumerate(answers)]

    def _answer(
        self, rows: Sequence[Mapping[str, Any]], headers: Sequence[Mapping[str, Any]], ids: Sequence[str]
    ) -> tuple[list[Answer | Failure], BatchReport]:
        started = perf_counter()
        requests = [
            guard(self._read, row, own_headers, request_id, request_id=request_id)
            for row, own_headers, request_id in zip(rows, headers, ids, strict=True)
        ]
        if self.cache is None:
            return self._compute(requests, ids, started)
        readable = [None if isinstance(request, Failure) else request for request in requests]
        repeats = find_repeats(self.cache, readable, HEADER, self.answer_headers)
        answers: dict[int, Answer | Failure] = dict(repeats.known)
        report = BatchReport(len(rows))
        if places := repeats.places:
            computed, report = self._compute([requests[at] for at in places], [ids[at] for at in places], started)
            answers.update(zip(places, computed, strict=True))
            for place, key in repeats.keys.items():
                if place in places and isinstance(answer := answers[place], Answer):
                    self.cache.store(key, pack_answer(answer))
        all_answers = [answers[place] for place in repeats.same_as]
        steps = {place: report.steps[at] for at, place in enumerate(repeats.places) if at in report.steps}
        return all_answers, replace(report, rows=len(rows), errors=_errors(all_answers), steps=steps)

    def _compute(
        self, requests: Sequence[Request | Failure], ids: Sequence[str], started: float
    ) -> tuple[list[Answer | Failure], BatchReport]:
        steps = Steps(self._is_traced)
        decoded = [
            request
            if isinstance(request, Failure)
            else steps.take(place, "decode", self._decode, request, started + self._decoding_s, request_id=request_id)
            for place, (request, request_id) in enumerate(zip(requests, ids, strict=True))
        ]
        ready = perf_counter()
        # A request that could not be decoded has the row None, which the batcher does not run.
        spans = [[None] if isinstance(item, Failure) else item.rows for item in decoded]
        results = self._batcher.run([row for span in spans for row in span], started + self._decoding_s)
        computed = perf_counter()
        run = [place for place, item in enumerate(decoded) if isinstance(item, Exchange)]
        steps.share("infer", ready, computed, run)
        all_outputs = iter(results.rows)
        outputs = [[*islice(all_outputs, len(span))] for span in spans]
        answers = [
            item
            if isinstance(item, Failure)
            else steps.take(place, "encode", self._encode, own, item, request_id=request_id)
            for place, (item, own, request_id) in enumerate(zip(decoded, outputs, ids, strict=True))
        ]
        seconds = (ready - started, computed - ready, perf_counter() - computed)
        return answers, BatchReport(
            len(requests), results.padding, seconds, _errors(answers), results.positions, steps.of
        )

    def _read(self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str) -> Request:
        limit = self.record.max_request_bytes
        return Request(row, headers, request_id=request_id, max_bytes=limit, max_values=self._max_values)

    def _decode(self, request: Request, until: float) -> Exchange:
        if perf_counter() > until:
            raise Overdue
        decoded = read_exchange(self, request, until, is_built_in=self._is_built_in)
        for row in decoded.rows:
            self._check_row(row)
        return decoded

    def _check_row(self, row: Row) -> None:
        # Compiled code does not check shapes: with a smaller buffer it would read past the end.
        check_length(row, self.record.inputs)
        for array, spec in zip(row, self.record.inputs, strict=True):
            if not spec.fits(array.shape) or not np.can_cast(array.dtype, numpy_dtype(spec.dtype), "same_kind"):
                wanted = f"{spec.dtype}{spec.shape_text()}"
                raise TypeError(f"decode() returned {array.dtype}{array.shape} for `{spec.name}`, not {wanted}")
            # At a row that a table does not have, compiled code ends the worker. Marina's own handlers have looked.
            if not self._is_built_in and not _is_free(array, spec):
                check_range(array, spec)

    def _encode(self, results: Sequence[list[Array] | AnswerError | None], decoded: Exchange) -> Answer:
        for result in results:
            if isinstance(result, AnswerError):
                raise result
        answer = decoded.answer([result for result in results if isinstance(result, list)])
        if not isinstance(answer.body, bytes):
            raise TypeError(f"encode() returned a body of {type(answer.body).__name__}, not bytes")
        if len(answer.body) > self.record.max_response_bytes:
            raise AnswerTooLarge
        if not _CONTENT_TYPE.fullmatch(answer.content_type):
            raise ValueError("encode() returned a content type that is not a legal header value")
        for name, value in answer.headers.items():
            if not (_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)):
                raise ValueError("encode() returned a header that is not legal")
        return answer

    def _rows_in_time(self, context: Context) -> int:
        largest, seconds = max(self._batcher.seconds.items())
        requests = (context.model_yaml_config or {}).get("batchSize") or largest
        in_time = self._decoding_s / requests * largest / max(seconds, 1e-6)
        return max(1, int(min(_MAX_ROWS, in_time)))

    def rehearse(self) -> Answer | None:
        """Answers the sample, through all steps of a request, and returns the answer. So codecs are loaded before the
        worker is ready, and a package that cannot answer never becomes ready."""
        sample = self.record.sample
        if sample is None:
            return None
        body = (self.directory / sample.file).read_bytes()
        (answer,), _ = self._answer([{"body": body}], [{"content-type": sample.content_type}], [_NO_ID])
        if isinstance(answer, Failure):
            why = answer.cause or answer.answer.body.decode()
            raise RecordError(f"`sample`: `{sample.file}` was answered with {answer.status}: {why}")
        return answer


def _is_free(array: Array, spec: TensorSpec) -> bool:
    """Whether the array may have any values: infinite ones too, where the spec sets no limits."""
    return array.dtype.kind == "f" and (spec.min, spec.max, spec.columns) == (None, None, None)


def _errors(answers: Sequence[Answer | Failure]) -> list[str]:
    return [answer.kind for answer in answers if isinstance(answer, Failure)]


def _send(answer: Answer | Failure, index: int, context: Context) -> bytes:
    if isinstance(answer, Failure):
        context.set_response_status(answer.status, responses.get(answer.status, ""), index)
        answer = answer.answer
    context.set_response_content_type(index, answer.content_type)
    for name, value in answer.headers.items():
        context.set_response_header(index, name, value)
    return answer.body


def _set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        try:
            torch.set_num_interop_threads(1)
        except RuntimeError:  # torch allows it once per process, before any parallel work
            logger.warning("inter-op threads stay at %d", torch.get_num_interop_threads())
