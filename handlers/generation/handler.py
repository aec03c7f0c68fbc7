"""`handler: text`: OpenAI's completions and chat, streamed, for many clients at once.

With `continuousBatching` TorchServe calls `handle` in rounds: each call lists the open requests, and its result holds
what can be sent for each of them. If a request is missing from a round, its client has left. The engine runs in a
thread of its own, so that a round never waits for a step that it does not need, and never longer than `_WAKE_S`."""

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from marina.handlers import receive, starting
from marina.handlers.artifact import mismatch_error
from marina.handlers.base import Context
from marina.handlers.caching import open_cache
from marina.handlers.generation.answers import AnswerWriter, VerbatimWriter
from marina.handlers.generation.dialects.choosing import ChatForm
from marina.handlers.generation.engines import make_engine
from marina.handlers.generation.engines.weights import vocabulary_size
from marina.handlers.generation.grammars import Grammars
from marina.handlers.generation.loop import EngineFailed, EngineLoop, Waitable, end_worker
from marina.handlers.generation.metrics import TextMetrics
from marina.handlers.generation.open_requests import (
    FAILED,
    KNOWN_MESSAGES_HEADER,
    STOPPED,
    FlushPace,
    FullResponse,
    HistoryWait,
    OpenAnswer,
    OpenRequest,
    PromptWait,
    RouteWait,
    SchemaWait,
    Waiting,
    describe_models,
    refusing_if_busy,
    set_response,
    wait_for_history,
)
from marina.handlers.generation.parameters import Limits
from marina.handlers.generation.prompts import PendingPrompt, Prompts
from marina.handlers.generation.refusals import RequestRefused
from marina.handlers.generation.routing import ForwardedAnswer, SmallModelRoute, open_route
from marina.handlers.generation.scheduler import Scheduler
from marina.handlers.generation.sequence import AnswerSource, GenerationTask, TextSequence
from marina.handlers.generation.sessions import ConversationAnswer, open_conversations
from marina.handlers.generation.several import SeveralAnswers
from marina.handlers.generation.shared_answers import SharedAnswers
from marina.handlers.generation.text_cache import AnswerRecording, CachedAnswer, TextCache
from marina.handlers.generation.text_request import ConversationRequest, RequestReader, TextRequest, UnreadRequest
from marina.handlers.generation.times import FOLDER, TokenTimes
from marina.handlers.generation.tokenizer import (
    DECODED_TOGETHER,
    TOKENIZER,
    Detokenizer,
    ModelTokenizer,
    template_source,
)
from marina.handlers.generation.traced import TracedTexts
from marina.handlers.machine import machine_mismatches
from marina.handlers.metrics import Metrics
from marina.handlers.record import PackedRecord, RecordError, TextSpec, load_record
from marina.handlers.tracing import open_reports

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

# The longest wait of a round: the departure of a client is only noticed at the next one.
_WAKE_S = 0.05


class TextHandler:
    """The entry point of TorchServe's worker."""

    def initialize(self, context: Context) -> None:
        """Returns when the engine is warm and has answered the sample; raises if the package does not fit."""
        starting.reached("imports")
        self.directory = Path(context.system_properties["model_dir"])
        self.record: PackedRecord = load_record(self.directory)
        if self.record.text is None:
            raise RecordError("`text`: missing: the package was not made for the `text` handler")
        self.text: TextSpec = self.record.text
        if self.record.artifacts and (differing := machine_mismatches(self.record.key, torch.device("cpu"))):
            raise mismatch_error(differing)
        torch.set_num_threads(self.record.threads)
        # The engine's thread and the thread of the rounds share the GIL: neither may hold it longer than a token takes.
        sys.setswitchinterval(0.001)
        folder = self.directory / self.text.folder
        self.tokenizer = ModelTokenizer(folder)
        template = template_source(folder)
        limits = Limits(
            model=self.record.name,
            context=self.text.context,
            max_tokens=self.text.max_tokens,
            vocabulary=vocabulary_size(folder),
            tokenizer=self.tokenizer,
            chat=None if template is None else ChatForm.of(template, self.text.tools),
            ends=self.text.ends,
            defaults=self.text.defaults,
        )
        self._reader = RequestReader(limits, self.record.max_request_bytes)
        # Of the server that started this worker; there is none at packaging.
        run = os.environ.get("MARINA_RUN")
        times = TokenTimes(Path(run, FOLDER)) if run else None
        self.metrics = TextMetrics(Metrics(self.record, self.text.engine, torch.device("cpu")), self.record.name, times)
        scheduler = Scheduler(room=self.text.waiting, slots=self.text.slots, prefill_chunk=self.text.prefill_chunk)
        engine = make_engine(self.text, folder, self.record.precision)
        self.loop = EngineLoop(engine, scheduler, self._make_sequence, self.metrics, failed=end_worker)
        self.prompts = Prompts(folder, self.text.context)
        self.grammars = Grammars(folder / TOKENIZER, self.text.ends)
        self._text_cache = TextCache(None)
        self._traced = TracedTexts(self.record.name, None)
        self._shared = SharedAnswers(self.loop.submit)
        self._route: SmallModelRoute | None = None
        self._open: dict[str, OpenRequest] = {}
        self._conversations = open_conversations(self.metrics.registry, self.record.name, changed=self.loop.wake)
        self._pace = FlushPace(self.text.flush_ms / 1000)
        # The supervisor creates this file when a stop waits no longer for open answers.
        self._closing = Path(run or self.directory, "closing")
        starting.reached("load")
        self.rehearse()
        # The route and the cache come after the sample, so that this engine computes it at every start.
        self._route = open_route(self.metrics.registry, self.record.name, self.loop)
        self._text_cache = TextCache(open_cache(self.metrics.registry, self.record.name))
        self._traced = TracedTexts(self.record.name, open_reports())
        receive.install_receiver()
        starting.reached("warm")

    def handle(self, data: Sequence[Mapping[str, Any]] | None, context: Any) -> list[bytes]:
        """One round: the next piece of each open answer, in the order of the rows."""
        with self.loop.polled():
            return self._round(data or [], context)

    def _round(self, rows: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        ids = [context.get_request_id(index) or "-" for index in range(len(rows))]
        for gone in self._open.keys() - set(ids):
            self._cancel(gone)
            del self._open[gone]
            self._traced.end(gone)
        new = [index for index, request_id in enumerate(ids) if request_id not in self._open]
        responses = self._open_all([(ids[index], rows[index], context.get_all_request_header(index)) for index in new])
        if self._closing.exists():
            self._end_all(responses)
        self._wait(responses)
        self._shared.restart_failed()
        answers: list[tuple[bytes, bool | None]] = []
        for index, request_id in enumerate(ids):
            request = self._open.get(request_id)
            if request_id in responses:
                answers.append((set_response(responses[request_id], index, context), None))
            elif isinstance(request, OpenAnswer):
                answers.append(self._send_piece(request_id, request, index, context))
            else:
                # TorchServe sends nothing for a request whose id is removed, and names it again in the next round.
                del context.request_ids[index]
                answers.append((b"", None))
        context.stopping_criteria = {index: lambda _, last=last: last for index, (_, last) in enumerate(answers)}
        return [body for body, _ in answers]

    def _open_all(
        self, requests: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[str, FullResponse]:
        """Opens the new requests; returns the responses of those that are answered at once, by their ids."""
        responses: dict[str, FullResponse] = {}
        for request_id, _, headers in requests:
            self._traced.begin(request_id, headers)
        steps = {request_id: partial(self._read, row, headers, request_id) for request_id, row, headers in requests}
        self._take_steps(steps, responses)
        return responses

    def _take_steps(
        self,
        steps: Mapping[str, Callable[[], TextRequest | OpenRequest | FullResponse]],
        responses: dict[str, FullResponse],
    ) -> None:
        """Takes requests to their next state, by their ids. Those whose prompts are tokens are started, with one
        look-up in the cache for all of them."""
        read: list[TextRequest] = []
        for request_id, step in steps.items():
            request = self._guarded(request_id, step)
            if isinstance(request, TextRequest):
                read.append(request)
            else:
                self._settle(request_id, request, responses)
        asked = [(request.parameters, request.control) for request in read if request.is_shared]
        lookups = iter(self._text_cache.find(asked) if asked else [])
        for request in read:
            cached = next(lookups) if request.is_shared else None
            started = self._guarded(request.task.id, partial(self._start, request, cached))
            self._settle(request.task.id, started, responses)

    def _settle(self, request_id: str, opened: OpenRequest | FullResponse, responses: dict[str, FullResponse]) -> None:
        if isinstance(opened, FullResponse):
            self._open.pop(request_id, None)
            responses[request_id] = opened
            self._traced.end(request_id, str(opened.status) if opened.status >= 400 else None)
        else:
            self._open[request_id] = opened

    def _read(
        self, row: Mapping[str, Any], headers: Mapping[str, Any], request_id: str
    ) -> TextRequest | Waiting | FullResponse:
        path = str(headers.get("url_path") or "").strip("/")
        if path == "v1/models" or path.startswith("v1/models/"):
            return describe_models(path.removeprefix("v1/models").strip("/"), self.record.name)
        request = self._reader.read(row, headers, request_id, path)
        if isinstance(request, ConversationRequest):
            return wait_for_history(request, self._conversations)
        return self._tokenise(request)

    def _tokenise(self, request: TextRequest | UnreadRequest) -> TextRequest | PromptWait:
        if isinstance(request, TextRequest):
            return request
        return PromptWait(request, self.prompts.begin(request.prompt, self.loop.wake))

    def _advance_waiting(self, responses: dict[str, FullResponse]) -> bool:
        """Takes requests whose wait is over to their next state; False if there are none."""
        now = time.monotonic()
        steps = {}
        for request_id, request in self._open.items():
            deadline = request.deadline if isinstance(request, PromptWait | SchemaWait) else None
            is_late = deadline is not None and now > deadline
            if not isinstance(request, OpenAnswer) and (is_late or request.awaited.is_ready):
                steps[request_id] = partial(self._end_wait, request)
        self._take_steps(steps, responses)
        return bool(steps)

    def _end_wait(self, waiting: Waiting) -> TextRequest | OpenRequest:
        if isinstance(waiting, HistoryWait):
            return self._tokenise(waiting.unread.read(waiting.awaited.turn()))
        if isinstance(waiting, PromptWait):
            return waiting.read()
        if isinstance(waiting, SchemaWait):
            return self._submit(waiting.with_grammar(self.grammars), waiting.recording)
        if waiting.awaited.has_failed or waiting.awaited.end == "error":
            # Nothing was sent to the client yet, so this model can answer instead.
            return self._write_here(waiting.request, waiting.recording)
        return OpenAnswer(waiting.awaited, VerbatimWriter(stream=waiting.request.parameters.stream))

    def _guarded(self, request_id: str, step: Callable[[], Opened]) -> Opened | FullResponse:
        try:
            return step()
        except RequestRefused as err:
            self.metrics.count_refusal(err.kind)
            return FullResponse(err.body(), err.status, err.retry_after_s)
        except Exception:
            # A round serves all open requests, so an error of one of them must not end it.
            logger.exception("request %s failed", request_id)
            self.metrics.count_refusal("internal")
            return FAILED

    def _start(
        self, request: TextRequest, cached: CachedAnswer | AnswerRecording | None
    ) -> OpenAnswer | SchemaWait | RouteWait:
        if isinstance(cached, CachedAnswer):
            self._traced.open(request, None)
            return self._open_answer(request, cached)
        if self._route and (forwarded := self._route.forward(request, self._traced.parent(request.task.id))):
            self._traced.open(request, None)
            return RouteWait(request, forwarded, cached)
        return self._write_here(request, cached)

    def _write_here(self, request: TextRequest, recording: AnswerRecording | None) -> OpenAnswer | SchemaWait:
        if request.parameters.schema is None:
            return self._submit(request, recording)
        with refusing_if_busy():
            compiling = self.grammars.compile(request.parameters.schema, self.loop.wake)
        self.metrics.count_schema(compiling.is_known)
        return SchemaWait(request, compiling, recording)

    def _submit(self, request: TextRequest, recording: AnswerRecording | None) -> OpenAnswer:
        is_joined, takes = False, request.control.may_read
        with refusing_if_busy():
            if request.more:
                tasks, together = (request.task, *request.more), self.text.slots
                submit = self._traced.noting(request.task.id, self.loop.submit)
                source: AnswerSource = SeveralAnswers(tasks, submit, self.loop.cancel, together=together)
            elif recording is None:
                source = self.loop.submit(request.task)
            else:
                source, is_joined = self._shared.join_or_submit(recording.key, request.task, joins=takes)
        if recording and takes:
            self._text_cache.count("batch" if is_joined else "computed")
        self._traced.open(request, source)
        if not is_joined:
            prompts = request.parameters.prompts or (request.parameters.prompt,)
            self.metrics.count_prompt(sum(map(len, prompts)))
        return self._open_answer(request, source, recording)

    def _open_answer(
        self, request: TextRequest, source: AnswerSource, recording: AnswerRecording | None = None
    ) -> OpenAnswer:
        writer = AnswerWriter(request.parameters, self.record.name, request.task.id, self.tokenizer)
        if request.turn is None:
            return OpenAnswer(source, writer, recording)
        return OpenAnswer(
            ConversationAnswer(source, request.turn, writer.message), writer, recording, request.turn.known_messages
        )

    def _make_sequence(self, task: GenerationTask) -> TextSequence:
        ends = {*task.sampling.ends, *(() if task.sampling.ignore_eos else self.text.ends)}
        decode = self.tokenizer.decoder(task.marks)
        return TextSequence(task, Detokenizer(decode, task.prompt[-DECODED_TOGETHER:]), frozenset(ends))

    def _wait(self, responses: dict[str, FullResponse]) -> None:
        """Waits until there is something to send, and starts answers meanwhile. Text of running answers is sent at most
        once in `flush_ms`."""
        until, is_ready, has_started = time.monotonic() + _WAKE_S, True, True
        while has_started and is_ready:
            answers = [request for request in self._open.values() if isinstance(request, OpenAnswer)]
            awaited = [request.awaited for request in self._open.values() if not isinstance(request, OpenAnswer)]
            watched: list[Waitable] = [*(answer.source for answer in answers), *awaited]
            left_s = 0 if responses else max(0, until - time.monotonic())
            try:
                is_ready = bool(watched) and self.loop.wait(watched, left_s)
            except EngineFailed:
                for answer in answers:
                    answer.is_lost = answer.source.end is None
                is_ready = False
            has_started = self._advance_waiting(responses)
        if not is_ready:
            return
        ready = [answer for answer in answers if answer.source.is_ready]
        if not responses and all(answer.has_text and not answer.source.end for answer in ready):
            time.sleep(self._pace.wait_s(time.monotonic()))
        self._pace.flush(time.monotonic())

    def _end_all(self, responses: dict[str, FullResponse]) -> None:
        """The server stops: every open request gets an error, after what was sent of its answer."""
        for request_id, request in list(self._open.items()):
            self._cancel(request_id)
            if isinstance(request, OpenAnswer):
                request.is_cut = request.source.end is None
            else:
                self._settle(request_id, STOPPED, responses)

    def _cancel(self, request_id: str) -> None:
        """Stops computing the request's answer, unless others read it too, and reading it from the small model."""
        if unread := self._shared.leave(request_id):
            self.loop.cancel(unread)
        request = self._open[request_id]
        source = request.source if isinstance(request, OpenAnswer) else request.awaited
        if isinstance(source, ForwardedAnswer | PendingPrompt | SeveralAnswers):
            source.cancel()

    def _send_piece(
        self, request_id: str, answer: OpenAnswer, index: int, context: Context
    ) -> tuple[bytes, bool | None]:
        """What can be sent now, and whether it is the last piece. None instead of True if it is also the first piece:
        TorchServe never delivers a stream whose first piece is its last, so such an answer is sent as no stream."""
        error = answer.error
        if error and error.status == 500:
            self.metrics.count_refusal("internal")
        if error and not answer.has_begun:
            self._close(request_id, str(error.status))
            return set_response(error, index, context), None
        pieces = self.loop.take(answer.source)
        body = answer.writer.write(pieces)
        answer.has_text |= bool(pieces)
        has_ended = answer.source.end is not None and bool(pieces) and pieces[-1].end is not None
        is_last: bool | None = bool(error) or has_ended
        if answer.recording:
            answer.recording.pieces += pieces
            if is_last and not error:
                self._text_cache.store(answer.recording)
        if error:
            body += answer.writer.fail(error.body)
        if not answer.has_begun:
            context.set_response_content_type(index, answer.writer.content_type)
            if answer.known_messages is not None:
                context.set_response_header(index, KNOWN_MESSAGES_HEADER, str(answer.known_messages))
            is_last = None if is_last else False
        answer.has_begun = True
        if is_last is not False:
            self._close(request_id, str(error.status) if error else None)
        return body, is_last

    def _close(self, request_id: str, error: str | None) -> None:
        self._shared.leave(request_id)
        closed = self._open.pop(request_id)
        if isinstance(closed, OpenAnswer) and isinstance(closed.source, SeveralAnswers):
            # If one of them has failed, the others are of no use.
            closed.source.cancel()
        self._traced.end(request_id, error)

    def rehearse(self, body: bytes | None = None) -> FullResponse | None:
        """Answers the package's sample, or another body, as a client's request, so that a package that cannot do so
        never gets ready. The answer is None if there is no sample."""
        if self.record.sample is None:
            return None
        body = body or (self.directory / self.record.sample.file).read_bytes()
        headers = {"content-type": self.record.sample.content_type}
        responses = self._open_all([("-", {"body": body}, headers)])
        while not responses and not isinstance(self._open["-"], OpenAnswer):
            self.loop.wait([self._open["-"].awaited], _WAKE_S)
            self._advance_waiting(responses)
        if responses:
            raise RecordError(f"`sample`: was answered with {responses['-'].status}: {responses['-'].body.decode()}")
        opened = self._open.pop("-")
        assert isinstance(opened, OpenAnswer)
        written = b""
        with self.loop.polled():
            while not opened.source.end:
                self.loop.wait([opened.source], _WAKE_S)
                if pieces := self.loop.take(opened.source):
                    written += opened.writer.write(pieces)
        if opened.source.end == "error":
            raise RecordError("`sample`: the engine failed to answer it")
        return FullResponse(written)
